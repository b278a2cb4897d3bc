"""Report what can be removed from a model and what cannot, before anything is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lilliput.frameworks import part_for
from lilliput.frameworks.shrinking import Shrinking
from lilliput.graph.dead import find_dead
from lilliput.graph.groups import ChannelGroups, count, name_of, pinned_notes, why_kept
from lilliput.graph.labels import Flags
from lilliput.speedup.channels import channel_groups
from lilliput.tables import html_table


@dataclass(frozen=True, eq=False)
class Preflight:
    """A report on a model; ``print`` shows it.

    Attributes
    ----------
    groups : ChannelGroups
        The channels that can be removed together, and those that are kept, with the reason.
    masked : dict
        Per group, the units whose slices are all zero, so that speedup would cut them.
    """

    groups: ChannelGroups
    masked: dict[str, Flags]

    def __str__(self) -> str:
        groups = self.groups
        lines = [*self._summary(), "", f"{'units':>7} {'masked':>7}  group"]
        lines += [f"{size:>7} {masked or '–':>7}  {name}" for size, masked, name in self._rows()]
        if groups.pinned:
            lines += ["", "stays, and why:"]
            lines += [f"  {names}: {reason}" for names, reason in why_kept(groups)]
        if groups.unknown:
            lines += ["", "ops without a rule (their channels are kept):"]
            lines += [f"  {name} at {where}" for name, where in groups.unknown.items()]
        if groups.unreached:
            lines += ["", "not reached by the example inputs:", f"  {', '.join(groups.unreached)}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        units, pinned = sum(g.size for g in self.groups), len(self.groups.pinned)
        groups = count(len(self.groups), "channel group")
        return f"Preflight({groups}, {units:,} units, {pinned} pinned)"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        title, share = self._summary()
        header = ("units", "masked", "group")
        return html_table(self._rows(), header, title, [share, *pinned_notes(self.groups)])

    def _summary(self) -> tuple[str, str]:
        groups = self.groups
        half = {g.name: np.arange(g.size) % 2 == 1 for g in groups}
        return (
            f"{count(len(groups), 'channel group')} with {sum(g.size for g in groups):,} units can be "
            "pruned",
            f"removing half of them would leave {_share(groups.count_parameters, half)} of the parameters "
            f"and {_share(groups.count_macs, half)} of the MACs",
        )

    def _rows(self) -> list[tuple[int, int, str]]:
        """Return units, masked units and name of each group."""
        return [(g.size, int(self.masked[g.name].sum()), name_of(g)) for g in self.groups]


def preflight(model: Any, example_inputs: Any = None) -> Preflight:
    """Report what can be removed from a model, what cannot and why; the model is only read.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        A model, with or without a pruner; a Keras model has to be built.
    example_inputs : tensor, tuple, dict or structure of arrays
        Inputs of the model. A Keras model needs it only if it is subclassed, or if its
        inputs have dynamic sizes.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> print(preflight(model, torch.zeros(2, 4)))
    1 channel group with 8 units can be pruned
    removing half of them would leave 52% of the parameters and 50% of the MACs
    <BLANKLINE>
      units  masked  group
          8       –  0.weight
    <BLANKLINE>
    stays, and why:
      2.weight: they are the model's output
    """
    groups = channel_groups(model, example_inputs)
    part: Shrinking = part_for(model, "shrink")
    return Preflight(groups, find_dead(groups, part.zeros_of(model)))


def _share(count: Any, removed: dict[str, Flags]) -> str:
    return f"{count(removed) / max(count(), 1):.0%}"
