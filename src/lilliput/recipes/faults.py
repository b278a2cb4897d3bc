"""One thing that is wrong in a recipe, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A place in the recipe, as keys and indices, and what is wrong there.

    Examples
    --------
    >>> Fault(("steps", 0, "config", 1, "sparsity"), "received 80.").where
    'step 1 → config → rule 1 → sparsity'
    """

    place: tuple[str | int, ...]
    message: str

    @property
    def where(self) -> str:
        """The place as a reader says it; steps count from 1, rules from 0 as everywhere."""
        parts = list(self.place)
        if parts[:1] == ["steps"] and len(parts) > 1 and isinstance(parts[1], int):
            parts[:2] = [f"step {parts[1] + 1}"]
        if parts[1:2] == ["config"] and len(parts) > 2 and isinstance(parts[2], int):
            parts[2] = f"rule {parts[2]}"
        return " → ".join(str(part) for part in parts)
