"""Render the report data as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from lilliput.charts import metro
from lilliput.charts.colors import variables
from lilliput.charts.groups import draw_groups, layers_in
from lilliput.charts.heatmap import draw_strip, find_strips
from lilliput.charts.histograms import draw_pair
from lilliput.charts.lines import NAMED, draw_lines, rank
from lilliput.charts.scatter import AXES, costs_of, draw_scatter, named_of, spots_of
from lilliput.errors import MissingExtraError
from lilliput.report.document import Report, read_receipt
from lilliput.report.page import layers, words

if TYPE_CHECKING:
    from jinja2 import Template

_PLAIN = 64_000  # characters of data stored verbatim in the page; more are compressed
_FEW_ROWS = 48  # of a map of channel groups that is initially open


@dataclass(frozen=True)
class Section:
    """A part of the page: its anchor and its heading."""

    key: str
    title: str


def render(report: Report) -> str:
    """Return the page of a report.

    The browser may run only this script and load nothing (a content security policy with
    the script's hash), so that even a name that looks like a script has no effect.
    """
    from markupsafe import Markup

    receipt = None if report.receipt is None else read_receipt(report.receipt)
    metric = "metric" if receipt is None else receipt.metric_name
    script, text = _text("report.js"), report.to_json()
    is_plain = len(text) <= _PLAIN
    drawings = {key: Markup(x) for key, x in _drawings(report, metric).items()}
    return _template().render(
        report=report,
        receipt=receipt,
        metric=metric,
        words=words,
        table=layers,
        sections=_sections(report, drawings),
        drawings=drawings,
        Markup=Markup,
        draw_pair=draw_pair,
        named_of=named_of,
        spots_of=spots_of,
        named=rank(report.sensitivity)[:NAMED],
        style=Markup(_style()),
        script=Markup(script),
        policy=_policy(script),
        data=Markup(_embedded(text) if is_plain else _packed(text)),
        is_plain=is_plain,
        flags=_flags(report.environment),
        is_small_map=len(layers_in(report.groups)) <= _FEW_ROWS,
        file_name=_file_name(report.title),
    )


@cache
def _template() -> Template:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise MissingExtraError("the report needs Jinja2: pip install jinja2") from error
    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return page.from_string(_text("report.html"))


@cache
def _text(name: str) -> str:
    return files("lilliput.report.page").joinpath(name).read_text(encoding="utf-8")


def _drawings(report: Report, metric: str) -> dict[str, str]:
    """Return the drawings for which there is data."""
    drawn: dict[str, str] = {}
    shown = layers.major(report.layers)
    for number, strip in enumerate(find_strips(shown) if len(shown) > 1 else (), 1):
        drawn[f"heat_{strip.label}"] = draw_strip(strip, shown, number)
    curves = [curve for curve in report.sensitivity if curve.points]
    if curves:
        drawn["lines"] = draw_lines(curves, metric)
    for cost in costs_of(report.points):
        drawn[f"scatter_{cost}"] = draw_scatter(report.points, cost, metric)
    if any(group.makes or group.reads for group in report.groups):
        drawn["groups"] = draw_groups(report.groups, [row.name for row in report.layers])
    return drawn


def _sections(report: Report, drawings: dict[str, Any]) -> list[Section]:
    known = {
        "receipt": ("Receipt", report.receipt is not None or report.notes),
        "tried": ("All models tried", any(f"scatter_{x}" in drawings for x in AXES)),
        "layers": ("Layers", report.layers),
        "map": ("Sparsity and noise", any(x.startswith("heat_") for x in drawings)),
        "sensitivity": ("Sensitivity", "lines" in drawings),
        "histograms": ("Histograms", report.histograms),
        "groups": ("Channel groups", "groups" in drawings),
        "recipe": ("Recipe", report.recipe),
        "reproduce": ("How to reproduce", report.reproduce),
        "environment": ("Environment", report.environment),
    }
    return [Section(key, title) for key, (title, is_there) in known.items() if is_there]


def _style() -> str:
    light, dark = variables(is_dark=False), variables(is_dark=True)
    themes = (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
    )
    return themes + _text("report.css") + metro.STYLE


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _embedded(json_text: str) -> str:
    """Return JSON that can be placed inside an HTML element, whatever its strings contain.

    >>> _embedded('{"name":"</script>"}')
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    for character in "<>&\u2028\u2029":
        json_text = json_text.replace(character, f"\\u{ord(character):04x}")
    return json_text


def _packed(json_text: str) -> str:
    """Return JSON compressed and base64-encoded; browsers can decompress it natively."""
    return base64.b64encode(zlib.compress(json_text.encode(), 9)).decode()


def _flags(environment: dict[str, Any]) -> str:
    """Return which instructions the processor has, and which it lacks."""
    flags = environment.get("flags")
    if not isinstance(flags, dict) or not flags:
        return ""
    held = [str(name) for name, is_there in flags.items() if is_there]
    missing = [str(name) for name, is_there in flags.items() if not is_there]
    return ", ".join(held or ["none"]) + (f" (not {', '.join(missing)})" if missing else "")


def _file_name(title: str) -> str:
    """Return a name for the downloaded data.

    >>> _file_name("ResNet-18 / pruned")
    'resnet-18-pruned.json'
    """
    plain = "".join(x if x.isalnum() and x.isascii() else "-" for x in title.lower())
    words_ = [word for word in plain.split("-") if word]
    return ("-".join(words_)[:60] or "report") + ".json"
