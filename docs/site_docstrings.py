"""Docstrings on the site: reStructuredText becomes Markdown, shared descriptions become one item."""

import inspect
import re
from importlib import import_module

from griffe import Extension, Parameter, ParameterKind, Parameters

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([\w.]+)`")
_SECTION = re.compile(r"^\w[\w ]*\n-{3,}$", re.MULTILINE)
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?=\S).*)*", re.MULTILINE)
_ITEM = re.compile(
    r'<li class="doc-section-item field-body">\s*<b>(?P<name>.*?)</b>(?P<type>.*?)–\s*'
    r'<div class="doc-md-description">(?P<text>.*?)</div>\s*</li>\s*',
    re.DOTALL,
)


class MarkdownDocstrings(Extension):
    """Translate every docstring as soon as it has been read."""

    def on_object(self, *, obj, **_):
        """Translate the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_function(self, *, func, **_):
        """Give a constructor the arguments that it passes on to a base class."""
        if any("passes_on" in str(decorator.value) for decorator in func.decorators):
            cls = getattr(import_module(func.module.path), func.parent.name)
            shown = inspect.signature(cls.__init__).parameters.values()
            func.parameters = Parameters(*map(_parameter, shown))


def _parameter(shown):
    """Return a parameter as the site knows it."""
    is_given, is_typed = (x is not shown.empty for x in (shown.default, shown.annotation))
    return Parameter(
        shown.name,
        annotation=shown.annotation if is_typed else None,
        kind=ParameterKind(shown.kind.description),
        default=repr(shown.default) if is_given else None,
    )


def to_markdown(text):
    """Return a docstring as Markdown; sections such as Parameters are left to the parser.

    >>> to_markdown("See :meth:`strip`::")
    'See `strip`:'
    """
    text = _ROLE.sub(_link, text)
    text = re.sub(r"(\w)::$", r"\1:", text, flags=re.MULTILINE)
    first_section = _SECTION.search(text)
    end = first_section.start() if first_section else len(text)
    return _EXAMPLE.sub(r"```pycon\n\g<0>\n```", text[:end]) + text[end:]


def _link(role):
    """Return a name, as a link if it is a path that the reference has."""
    path, _, name = role[1].rpartition(".")
    if not path.startswith("lilliput"):
        return f"`{name}`"
    return f'<autoref identifier="{role[1]}" optional><code>{name}</code></autoref>'


def on_page_content(html, **_):
    """Join neighbouring parameters that share their description, as the docstring has them."""
    parts, end = [], 0
    items = list(_ITEM.finditer(html))
    while items:
        first = items.pop(0)
        names, stop = [f"<b>{first['name']}</b>"], first.end()
        while items and items[0].start() == stop and items[0]["text"] == first["text"]:
            other = items.pop(0)
            names.append(f"<b>{other['name']}</b>")
            stop = other.end()
        entry = first[0]
        if len(names) > 1:
            entry = entry.replace(names[0] + first["type"], ", ".join(names) + " ")
        parts += [html[end : first.start()], entry]
        end = stop
    return "".join([*parts, html[end:]])
