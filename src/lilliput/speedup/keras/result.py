"""What shrinking a Keras model gave: the new model, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lilliput.report.receipt import Receipt
from lilliput.speedup.groups import count
from lilliput.speedup.keras.cuts import Cut


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
        Trained weights, and multiplications for a batch of one; before and after.
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
        units = sum(x for x, _ in self.removed.values()), sum(x for _, x in self.removed.values())
        lines = [
            f"removed     {units[0]:,} of {units[1]:,} units in {count(len(self.removed), 'channel group')}",
            f"parameters  {_arrow(self.parameters)}",
            f"MACs        {_arrow(self.macs)} per example",
            "runs as     a new Keras model",
            f"checked     equal to the masked model (relative error {self.error:.0e})",
            *(f"note        {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def _arrow(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,} → {after:,} ({after / max(before, 1):.0%})"
