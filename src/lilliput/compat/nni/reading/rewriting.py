"""Rewrite a program: the keys of its config lists, and imports that need no other change.

Uncertain parts are kept: a config list with comments inside, computed keys or values that decide
how a key reads; a class whose constructor, methods or results differ in any way that the program uses.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lilliput.compat.nni.config.dialects import translate
from lilliput.compat.nni.config.keys import RENAMES
from lilliput.compat.nni.config.target_quant_rules import is_of_v3
from lilliput.compat.nni.reading.literals import Expression, Rule, own_faults, read_rule
from lilliput.compat.nni.reading.scopes import Bindings
from lilliput.compat.nni.reading.surety import today_for_sure
from lilliput.compat.nni.reading.uses import find_uses

_RENAMED = {old: new for old, new, _ in RENAMES}
_WIDTH = 100


@dataclass(frozen=True)
class Edit:
    """A replacement of the bytes from one offset to another."""

    start: int
    end: int
    text: str


def rewrite(source: bytes) -> bytes:
    """Return a program with its imports and config lists in the current spelling.

    Examples
    --------
    >>> print(rewrite(b"from nni.compression.torch import L1FilterPruner").decode())
    from lilliput.torch import L1NormPruner as L1FilterPruner
    """
    tree = ast.parse(source)
    text = _Text(source)
    edits = [*_lists(tree, text), *_imports(tree, text)]
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        source = source[: edit.start] + edit.text.encode() + source[edit.end :]
    ast.parse(source)  # otherwise the caller would write invalid Python
    return source


class _Text:
    """The source as bytes, which positions in a syntax tree count."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.newline = "\r\n" if b"\r\n" in source else "\n"
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)

    def of(self, node: ast.stmt | ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def indent(self, node: ast.stmt | ast.expr) -> str:
        line = self.source[self.starts[node.lineno - 1] :]
        return line[: len(line) - len(line.lstrip(b" \t"))].decode()


def _lists(tree: ast.Module, text: _Text) -> Iterator[Edit]:
    for use in find_uses(tree).rules:
        rules = [read_rule(item) for item in use.node.elts if isinstance(item, ast.Dict)]
        if own_faults(use.paths, rules) is not None or any(is_of_v3(rule.values) for rule in rules):
            continue  # the defaults of such a rule differ from the current ones
        for rule in rules:
            if not rule.is_complete or _has_comment(text.of(rule.node)):
                continue
            translation = translate([rule.values])
            if translation.problems or not translation.notes or not _is_sure(rule):
                continue
            start, end = text.span(rule.node)
            written = [_written(one, rule, text) for one in translation.rules]
            yield Edit(start, end, f", {text.newline if len(written) > 1 else ''}".join(written))


def _is_sure(rule: Rule) -> bool:
    """Whether values that are only known at run time are unchanged under their new key."""
    lists = {"op_types", "op_names"}
    return not any(
        _holds_expression(value)
        and (key not in _RENAMED or _RENAMED[key] in lists)
        and key not in ("sparsity", "op_types", "op_names", "quant_bits")
        for key, value in rule.values.items()
    )


def _holds_expression(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, Expression) or any(map(_holds_expression, parts))


def _has_comment(source: str) -> bool:
    tokens = tokenize.generate_tokens(io.StringIO(f"({source})").readline)
    return any(token.type == tokenize.COMMENT for token in tokens)


def _written(made: dict[str, Any], rule: Rule, text: _Text) -> str:
    """Return one rule as source, in the style of the one that it replaces."""
    quote = '"' if text.of(rule.node).find('"') >= 0 and "'" not in text.of(rule.node) else "'"
    nodes = {
        key.value: value
        for key, value in zip(rule.node.keys, rule.node.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    came_from = {_RENAMED.get(str(key), str(key)): key for key in nodes}
    places = {key: place for place, key in enumerate(came_from)}
    pairs = []
    for key, value in sorted(made.items(), key=lambda item: places.get(item[0], len(places))):
        old = came_from.get(key)
        is_same = old is not None and rule.values[str(old)] == value
        shown = text.of(nodes[old]) if is_same else _shown(value, quote)
        pairs.append(f"{quote}{key}{quote}: {shown}")
    indent = text.indent(rule.node)
    line = f"{{{', '.join(pairs)}}}"
    if rule.node.lineno == rule.node.end_lineno and len(indent) + len(line) <= _WIDTH:
        return line
    inner = f"{text.newline}{indent}    "
    return f"{{{inner}{f',{inner}'.join(pairs)},{text.newline}{indent}}}"


def _shown(value: Any, quote: str) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_shown(item, quote) for item in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_shown(key, quote)}: {_shown(item, quote)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, str) and not isinstance(value, Expression):
        plain = "\\" not in repr(value) and quote not in value
        return f"{quote}{value}{quote}" if plain else repr(value)
    return repr(value)


def _imports(tree: ast.Module, text: _Text) -> Iterator[Edit]:
    bindings = Bindings(tree)
    for node in ast.walk(tree):
        is_nni = isinstance(node, ast.ImportFrom) and not node.level
        if not isinstance(node, ast.ImportFrom) or not is_nni:
            continue
        if (node.module or "").partition(".")[0] != "nni" or _has_comment(text.of(node)):
            continue
        today: dict[str, list[str]] = {}
        kept = []
        for alias in node.names:
            home, _, name = today_for_sure(tree, bindings, node, alias).rpartition(".")
            if not name:
                kept.append(_named(alias.name, alias.asname))
            else:
                today.setdefault(home, []).append(_named(name, alias.asname or alias.name))
        if today:
            start, end = text.span(node)
            lines = [f"from {home} import {', '.join(names)}" for home, names in today.items()]
            lines += [f"from {node.module} import {', '.join(kept)}"] if kept else []
            yield Edit(start, end, f"{text.newline}{text.indent(node)}".join(lines))


def _named(name: str, local: str | None) -> str:
    return name if local in (None, name) else f"{name} as {local}"
