"""A plan: how a model is shrunk, as data that can be saved and applied again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lilliput.graph.cuts import Cut

# A note on a model with captured parts whose sizes could not be made dynamic.
TIED = (
    "only accepts inputs with the sizes of the example inputs, "
    "including the batch size, because the captured code depends "
    "on them; pass example inputs with the sizes you will use"
)

Kind = Literal["module", "mixed", "graph"]
# Sizes stored as attributes of modules, by module path and attribute name.
Attributes = dict[tuple[str, str], Any]


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything needed to shrink a fresh copy of the same model in the same way.

    Parameters
    ----------
    cuts : tuple of Cut
        The indices of tensors that are kept.
    attributes : dict
        Sizes stored as attributes of modules, by module path and name.
    graphs : tuple of str
        Paths of modules that run as captured graphs; an empty path is the whole model.
    any_size : bool
        Whether these graphs accept batch sizes other than that of the example inputs.
    """

    cuts: tuple[Cut, ...]
    attributes: Attributes
    graphs: tuple[str, ...] = ()
    any_size: bool = False

    def __repr__(self) -> str:
        return f"Plan({self.kind}, {len(self.cuts)} cuts, {len(self.attributes)} attributes)"

    @property
    def kind(self) -> Kind:
        """``module``: the user's own code; ``mixed``: parts of it are graphs; ``graph``: all of it is."""
        if not self.graphs:
            return "module"
        return "graph" if "" in self.graphs else "mixed"
