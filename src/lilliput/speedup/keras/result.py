"""What shrinking a Keras model gave: the new model, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    @property
    def kind(self) -> str:
        """How the model runs: a Keras model is always one of layers."""
        return "module"

    def __str__(self) -> str:
        units = sum(x for x, _ in self.removed.values()), sum(x for _, x in self.removed.values())
        lines = [
            f"removed     {units[0]:,} of {units[1]:,} units in {count(len(self.removed), 'channel group')}",
            f"parameters  {_arrow(self.parameters)}",
            f"MACs        {_arrow(self.macs)}",
            "runs as     a new Keras model",
            f"checked     equal to the masked model (relative error {self.error:.0e})",
            *(f"note        {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def _arrow(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before:,} → {after:,} ({after / max(before, 1):.0%})"
