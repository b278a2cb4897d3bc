"""What shrinking a Keras model gave: the new model, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lilliput.graph.cuts import Cut
from lilliput.graph.groups import count
from lilliput.report.receipt import Receipt
from lilliput.tables import html_table


@dataclass(frozen=True, eq=False)
class SpeedupResult:
    """A shrunk Keras model with its report; ``print`` it.

    Attributes
    ----------
    model : keras.Model
        A new plain model with smaller layers of the same names; it is not compiled.
    cuts : tuple of Cut
        Which indices of which variables stayed.
    error : float
        Largest difference to the masked model's output, in parts of its largest entry.
    parameters, macs : tuple of int
        Trained weights, and multiplications of one call on the example inputs (of a batch of one if
        there are none); before and after.
    removed : dict
        Per group: units removed and units there were.
    notes : tuple of str
        What a reader should know.
    """

    model: Any
    cuts: tuple[Cut, ...]
    error: float
    parameters: tuple[int, int]
    macs: tuple[int, int]
    removed: dict[str, tuple[int, int]]
    seconds: float
    notes: tuple[str, ...]
    masked: Any
    example_inputs: Any

    @cached_property
    def receipt(self) -> Receipt:
        """Before → after; measured when it is first asked for.

        The masked model and the shrunk one are run on the example inputs, or on zeros.
        """
        from lilliput.report.measure import measure_all

        inputs = self.example_inputs
        if inputs is None:
            shapes = [(2, *(n or 1 for n in x.shape[1:])) for x in self.model.inputs]
            arrays = [np.zeros(s, x.dtype) for s, x in zip(shapes, self.model.inputs, strict=True)]
            inputs = arrays[0] if len(arrays) == 1 else arrays
        names = ["before", "after"]
        before, after = measure_all([self.masked, self.model], inputs, names=names, runs=20)
        return Receipt(
            before,
            after,
            max_difference=self.error,
            difference_to="the masked model, of its largest",
        )

    @property
    def kind(self) -> str:
        """How the model runs: a Keras model is always one of layers."""
        return "module"

    def __str__(self) -> str:
        lines = [f"{name:<11} {text}" for name, text in self._rows()]
        return "\n".join([*lines, *(f"note        {note}" for note in self.notes)])

    def __repr__(self) -> str:
        before, after = self.parameters
        return f"SpeedupResult({before:,} → {after:,} parameters, error {self.error:.0e})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return html_table(self._rows(), title="Cut and checked", notes=self.notes)

    def _inputs(self) -> str:
        return "a batch of one" if self.example_inputs is None else "the example inputs"

    def _rows(self) -> list[tuple[str, str]]:
        gone, units = (sum(pair[i] for pair in self.removed.values()) for i in (0, 1))
        groups = count(len(self.removed), "channel group")
        return [
            ("removed", f"{gone:,} of {units:,} units in {groups}"),
            ("parameters", _arrow(self.parameters)),
            ("MACs", f"{_arrow(self.macs)} for {self._inputs()}"),
            ("runs as", "a new Keras model"),
            ("checked", f"equal to the masked model (relative error {self.error:.0e})"),
        ]


def _arrow(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,} → {after:,} ({after / max(before, 1):.0%})"
