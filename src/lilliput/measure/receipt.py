"""The receipt: a model before and after compression, and the gains.

>>> before = Figures("large.onnx", "ONNX Runtime", 1000, 1000, 50_000, 4000, 2.0, 2.2, 50, 0.91)
>>> after = Figures("small.onnx", "ONNX Runtime", 250, 250, 12_000, 400, 0.5, 0.6, 50, 0.905)
>>> print(Receipt(before, after, metric_name="accuracy").verdict)
10.0× smaller on disk and 4.0× faster, accuracy -0.0050.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

from lilliput.errors import StateError
from lilliput.files import write_atomically
from lilliput.measure.latency import SAME_RATIO, doubt_of, other_runtime

_NOTHING = "–"
_NOT_MEASURED = "nothing was measured"
_DERIVED = ("verdict", "masked_only")
_SAME = 0.005
# The fields of Figures on latency and its conditions.
TIMED = ("runtime", "p50", "p95", "runs", "readings")
COUNTED = ("parameters", "nonzeros", "macs", "bytes")


@dataclass(frozen=True)
class Figures:
    """One model or file, measured on one machine; unknown figures are None.

    Parameters
    ----------
    name : str
        Its name in the table.
    runtime : str
        The runtime, with threads and batch.
    parameters, nonzeros : int, optional
        Number of trained values, and of nonzero ones.
    macs : int, optional
        Multiplications and additions for one example.
    bytes : int, optional
        On disk: of the file, or of the tensors that saving the model writes.
    p50, p95 : float, optional
        Milliseconds per call: the median and the 95th percentile.
    runs : int
        The number of timed calls.
    metric : float, optional
        The result of the user's evaluation.
    readings : tuple of float
        Median milliseconds per call of the first and the second half of the calls and, on one
        thread, of CPU time: if they disagree, the machine was busy with something else.
    coded : int, optional
        Bytes of the weights as a compact file; see :func:`lilliput.torch.save`.
    """

    name: str
    runtime: str = ""
    parameters: int | None = None
    nonzeros: int | None = None
    macs: int | None = None
    bytes: int | None = None
    p50: float | None = None
    p95: float | None = None
    runs: int = 0
    metric: float | None = None
    readings: tuple[float, ...] = ()
    coded: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = {key: _finite(value) for key, value in asdict(self).items()}
        return {**data, "readings": list(self.readings)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Figures:
        """Return the figures from the result of :meth:`to_dict`."""
        known = _known(cls, data, "figures")
        return cls(**{**known, "readings": tuple(known.get("readings", ()))})


@dataclass(frozen=True)
class Receipt:
    """A comparison before → after; ``print`` it, or let a notebook show it.

    Parameters
    ----------
    before, after : Figures
        The original model and the result.
    metric_name : str
        Name of the metric.
    max_difference : float, optional
        The largest difference of any output between simulation and execution.
    notes : tuple of str
        Other notes for the reader.
    difference_to : str
        What the outputs were compared with.
    """

    before: Figures
    after: Figures
    metric_name: str = "metric"
    max_difference: float | None = None
    notes: tuple[str, ...] = ()
    difference_to: str = "the simulation"

    @property
    def masked_only(self) -> bool:
        """Whether weights were only zeroed: the same number of parameters and bytes as before."""
        one, two = self.before, self.after
        if not one.bytes or not two.bytes or not one.nonzeros or two.nonzeros is None:
            return False
        is_alike = (
            one.parameters == two.parameters and abs(one.bytes - two.bytes) < _SAME * one.bytes
        )
        return is_alike and two.nonzeros < 0.99 * one.nonzeros

    @property
    def verdict(self) -> str:
        """A summary of the gains."""
        if self.masked_only:
            return self._masks()
        gains = " and ".join(filter(None, (self._size(), self._speed())))
        text = ", ".join(filter(None, (gains, self._metric_change())))
        doubt = self.doubt and f"speed not compared ({self.doubt})"
        return f"{'; '.join(filter(None, (text, doubt))) or _NOT_MEASURED}."

    @property
    def doubt(self) -> str:
        """Why the latencies cannot be compared (two runtimes, or unequal readings), or an empty string."""
        return doubt_of(self.before, self.after)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the rows of the table: figure, before, after, and the change."""
        one, two = self.before, self.after
        rows = [
            ("parameters", *_pair(one.parameters, two.parameters, _count)),
            ("non-zeros", *_pair(one.nonzeros, two.nonzeros, _count)),
            ("MACs per example", *_pair(one.macs, two.macs, _count)),
            ("bytes on disk", *_pair(one.bytes, two.bytes, _count)),
            ("file, entropy coded", *_pair(one.coded, two.coded, _count)),
            ("latency p50", *self._latencies(one.p50, two.p50)),
            ("latency p95", *self._latencies(one.p95, two.p95)),
            (self.metric_name, *_metrics(one.metric, two.metric)),
        ]
        shown = [row for row in rows if row[1] != _NOTHING or row[2] != _NOTHING]
        if self.max_difference is not None:
            shown.append(
                ("max |Δ output|", "", f"{self.max_difference:.3g}", f"to {self.difference_to}")
            )
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, including the verdict."""
        data = {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "metric_name": self.metric_name,
            "max_difference": _finite(self.max_difference),
            "masked_only": self.masked_only,
            "notes": list(self.notes),
            "difference_to": self.difference_to,
        }
        return {**data, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Receipt:
        """Return the receipt from the result of :meth:`to_dict`."""
        if not isinstance(data, Mapping):
            raise StateError(f"a receipt is an object, received {type(data).__name__}.")
        known = _known(cls, {k: v for k, v in data.items() if k not in _DERIVED}, "receipt")
        sides = {side: Figures.from_dict(known[side]) for side in ("before", "after")}
        return cls(**{**known, **sides, "notes": tuple(known.get("notes", ()))})

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        write_atomically(path, json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def load(cls, path: str | Path) -> Receipt:
        """Read a file written by :meth:`save`."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise StateError(f"{path}: no readable receipt ({error}).") from error
        return cls.from_dict(data)

    def __str__(self) -> str:
        head = ("", self.before.name, self.after.name, "")
        table = [head, *self.rows()]
        width = [max(len(row[i]) for row in table) for i in range(4)]
        lines = [
            f"{a:<{width[0]}}  {b:>{width[1]}}  {c:>{width[2]}}  {d}".rstrip()
            for a, b, c, d in table
        ]
        lines += [f"measured with {text}" for text in self._runtimes()]
        lines += [f"note: {note}" for note in (*self.notes, *self._advice())]
        return "\n".join([*lines, self.verdict])

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{_side(i)}">{escape(x)}</td>' for i, x in enumerate(r)
            )
            + "</tr>"
            for r in self.rows()
        )
        names = [escape(x.name) for x in (self.before, self.after)]
        head = "".join(f'<th style="text-align:right">{name}</th>' for name in names)
        small = "<br>".join(escape(x) for x in (*self._runtimes(), *self.notes, *self._advice()))
        return (
            f"<table><thead><tr><th></th>{head}<th></th></tr></thead><tbody>{rows}</tbody></table>"
            f"<p><b>{escape(self.verdict)}</b></p><p><small>{small}</small></p>"
        )

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title="receipt")
        for i, title in enumerate(("", self.before.name, self.after.name, "")):
            table.add_column(Text(title), justify="left" if _side(i) == "left" else "right")
        for row in self.rows():
            table.add_row(*(Text(cell) for cell in row))
        small = [f"measured with {text}" for text in self._runtimes()]
        small += [*self.notes, *self._advice()]
        return Group(table, *(Text(x, style="dim") for x in small), Text(self.verdict, "bold"))

    def _runtimes(self) -> list[str]:
        """Return the runtimes of the two sides, once if they are the same."""
        sides = {side.runtime: side for side in (self.before, self.after) if side.runtime}
        if len(sides) < 2:
            return list(sides)
        return [f"{text} ({side.name})" for text, side in sides.items()]

    def _masks(self) -> str:
        share, change = "", self._metric_change()
        if self.after.nonzeros is not None and self.after.parameters:
            share = f"{1 - self.after.nonzeros / self.after.parameters:.0%} of the weights are zero, but "
        return (
            f"masks only: {share}nothing is smaller or faster "
            f"yet{change and ', '}{change}. speedup() cuts out masked "
            "channels; masks of single weights only make the file zip "
            "better."
        )

    def _size(self) -> str:
        one, two = self.before.bytes, self.after.bytes
        if one is None or two is None:
            return ""
        if one and abs(one - two) < _SAME * one:
            return "the same size on disk"
        return f"{_times(one, two)} {'smaller' if two < one else 'larger'} on disk"

    def _speed(self) -> str:
        one, two = self.before.p50, self.after.p50
        if not one or not two or self.doubt:
            return ""
        if max(one, two) / min(one, two) < SAME_RATIO:
            return "no faster here"
        return f"{_times(one, two)} {'faster' if two < one else 'slower here'}"

    def _latencies(self, one: float | None, two: float | None) -> tuple[str, str, str]:
        first, second, ratio = _pair(one, two, _milliseconds)
        word = "noisy" if self.doubt.startswith("noisy") else "not comparable"
        return first, second, word if self.doubt else ratio

    def _advice(self) -> list[str]:
        """Return advice on comparing two runtimes and on recovering a lost metric."""
        advice = []
        if self.doubt and other_runtime(self.before, self.after):
            advice.append(
                "to compare speed, time two files in one runtime: measure_all([original, small], inputs)"
            )
        if self._lost_by_pruning():
            advice.append(f"{self.metric_name} fell: {self._way_back()}")
        return advice

    def _way_back(self) -> str:
        """Return how to recover accuracy lost to pruning, for the model's framework."""
        if any(x.runtime.startswith(("Keras", "LiteRT")) for x in (self.before, self.after)):
            return (
                "recalibrate(model, batches, original=original) before "
                "speedup() matches batch norms with the original, which "
                "often recovers much of it without training"
            )
        return (
            "reconstruct(model, batches, original) before speedup() "
            "often recovers much of it without training; "
            "recalibrate(model, batches, original=original) is faster "
            "and recovers less"
        )

    def _lost_by_pruning(self) -> bool:
        """Whether weights were removed and more than a twentieth of the metric was lost."""
        one, two = self.before, self.after
        if one.metric is None or two.metric is None or not one.nonzeros or two.nonzeros is None:
            return False
        return (
            two.nonzeros < 0.99 * one.nonzeros and one.metric > 0 and two.metric < 0.95 * one.metric
        )

    def _metric_change(self) -> str:
        one, two = self.before.metric, self.after.metric
        return "" if one is None or two is None else f"{self.metric_name} {_change(one, two)}"


def take_receipt(before: Figures, after: Figures, **known: Any) -> Receipt:
    """Return the receipt of two measurements; figures that a file does not have come from ``known``.

    Parameters
    ----------
    before, after : Figures
        Results of :func:`lilliput.torch.measure`.
    **known
        Fields of :class:`Receipt`, and ``parameters``, ``nonzeros`` or ``macs`` of the result.
    """
    own = {x.name for x in fields(Receipt)}
    counts = {k: v for k, v in known.items() if k not in own and getattr(after, k) is None}
    given = {k: v for k, v in known.items() if k in own}
    return Receipt(before, replace(after, **counts), **given)


def _known(cls: type, data: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return data for a dataclass, or raise an error that names the problem."""
    if not isinstance(data, Mapping):
        raise StateError(f"a {what} is an object, received {type(data).__name__}.")
    names = {x.name for x in fields(cls)}
    wrong: Iterable[str] = sorted(set(data) - names)
    missing = sorted({"name", "before", "after"} & names - set(data))
    if wrong or missing:
        raise StateError(
            f"not a {what}: unknown {list(wrong)}, missing {missing}; expected {sorted(names)}."
        )
    return dict(data)


def _pair(one: Any, two: Any, text: Any) -> tuple[str, str, str]:
    is_same = one is None or two is None or not one or abs(one - two) < _SAME * one
    return text(one), text(two), "" if is_same else _times(one, two, "÷", "×")


def _metrics(one: float | None, two: float | None) -> tuple[str, str, str]:
    change = "" if one is None or two is None else _change(one, two)
    return _number(one), _number(two), change


def _times(one: float, two: float, less: str = "", more: str = "") -> str:
    """Return how much smaller or larger, as ``10.0×`` or ``÷ 10.0``."""
    if not one or not two:
        return "from nothing" if two else "to nothing"
    ratio = max(one, two) / min(one, two)
    digits = f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}"
    return f"{less if two < one else more} {digits}" if less else f"{digits}×"


def _change(one: float, two: float) -> str:
    return "±0" if one == two else f"{two - one:+.4f}"


def _count(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"


def _milliseconds(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.4f}"


def _side(column: int) -> str:
    return "left" if column in (0, 3) else "right"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
