"""The result of shrinking: the model, its plan, and the gains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lilliput.graph.cuts import Cut
from lilliput.graph.groups import count
from lilliput.graph.plan import TIED, Kind, Plan
from lilliput.measure.receipt import Receipt
from lilliput.tables import html_table

_MOST_WIDTHS = 6  # in one line


@dataclass(frozen=True, eq=False)
class SpeedupResult:
    """A shrunk model with its report; ``print`` shows it.

    Attributes
    ----------
    model : torch.nn.Module or keras.Model
        The shrunk model: the given one, changed in place, unless ``inplace`` was False, ``kind``
        is ``'graph'``, or a Keras model is of a class with its own constructor.
    kind : str
        ``'module'``, ``'mixed'`` (some submodules run as captured graphs) or ``'graph'``; a Keras model
        is always ``'module'``.
    plan : Plan
        How to shrink a model of the same class in the same way.
    cuts : tuple of Cut
        The indices of tensors that were kept.
    error : float
        Largest relative difference to the masked model's output, in double precision if possible.
    parameters, macs : tuple of int
        Trained weights, and multiplications of one call on the example inputs (of a batch of one if
        there are none); before and after.
    removed : dict
        Per group: units removed, and units before.
    remembered : dict
        Widths stored as attributes that modules do not compute with (``num_features``): before and after.
    notes : tuple of str
        Notes for the user.
    receipt : Receipt
        Before → after, with the latency of both here; for a Keras model it is measured on first
        access.
    """

    model: Any
    plan: Plan
    error: float
    parameters: tuple[int, int]
    macs: tuple[int, int]
    removed: dict[str, tuple[int, int]]
    seconds: float
    remembered: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    source: dict[str, list[int]]  # names and shapes of the original tensors
    example_inputs: Any
    _take_receipt: Callable[[], Receipt]

    @property
    def kind(self) -> Kind:
        """How the model runs."""
        return self.plan.kind

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The indices of tensors that were kept."""
        return self.plan.cuts

    @cached_property
    def receipt(self) -> Receipt:
        """Before → after, with the latency of both here."""
        return self._take_receipt()

    def save(self, folder: str | Path, *, compact: bool = False) -> int:
        """Write the current model into a folder, for :func:`lilliput.torch.load`, and return its bytes.

        With ``compact``, it is one file, as small as possible; see :func:`lilliput.torch.save`.
        """
        from lilliput.speedup.saved import save_shrunk, save_shrunk_compact

        write = save_shrunk_compact if compact else save_shrunk
        return write(self.model, self.plan, self.source, self.example_inputs, folder)

    def __str__(self) -> str:
        is_tied = TIED in self.notes
        lines = [f"{name:<11} {text}" for name, text in self._rows()]
        lines += [f"note        {note}" for note in self.notes if note != TIED]
        return "\n".join([*([f"limited     {TIED}"] if is_tied else []), *lines])

    def __repr__(self) -> str:
        before, after = self.parameters
        return (
            f"SpeedupResult({self.kind}, {before:,} → {after:,} parameters, error {self.error:.0e})"
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return html_table(self._rows(), title="Cut and checked", notes=self.notes)

    def _rows(self) -> list[tuple[str, str]]:
        words = {
            "module": "your own module",
            "mixed": f"your own module, with {', '.join(self.plan.graphs)} as captured graphs",
            "graph": "a captured graph",
        }
        gone, units = (sum(pair[i] for pair in self.removed.values()) for i in (0, 1))
        groups = count(len(self.removed), "channel group")
        inputs = "a batch of one" if self.example_inputs is None else "the example inputs"
        rows = [
            ("removed", f"{gone:,} of {units:,} units in {groups}"),
            ("parameters", _arrow(self.parameters)),
            ("MACs", f"{_arrow(self.macs)} for {inputs}"),
            ("runs as", words[self.kind]),
            ("checked", f"equal to the masked model (relative error {self.error:.0e})"),
        ]
        widths = [f"{name} {old} → {new}" for name, (old, new) in self.remembered.items()]
        if widths:
            more = [f"{len(widths) - _MOST_WIDTHS} more"] if len(widths) > _MOST_WIDTHS else []
            rows.append(("widths", ", ".join([*widths[:_MOST_WIDTHS], *more])))
        return rows


def _arrow(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,} → {after:,} ({after / max(before, 1):.0%})"
