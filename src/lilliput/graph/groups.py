"""Channel groups: channels that can only be removed together, and all parameters affected by a removal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lilliput.graph.labels import Flags, Indices
from lilliput.graph.stages import Stage
from lilliput.tables import html_table

_MOST_NOTES = 12  # below a table
_MOST_NAMES = 4  # of parameters listed with a reason
Removed = Mapping[str, Flags]  # by group: which of its units are removed


@dataclass(frozen=True, eq=False)
class Slice:
    """The indices of a group along one dimension of one parameter or buffer.

    Parameters
    ----------
    tensor : str
        Full name of the parameter or buffer: ``'layer1.0.conv1.weight'``. A tied one has the name
        that comes first in the model.
    dim : int
        The dimension.
    units : array of int
        For each index of the dimension, the unit it belongs to; -1 for an index outside the group.
        For the input of a grouped convolution the array has two dimensions, (groups, inputs per
        group): the meaning of an index depends on the group that the filter is in.
    is_output : bool
        Whether the tensor produces these channels, so that its slices determine their importance.
    filters : int
        For the input of a grouped convolution, the dimension that counts its filters.
    """

    tensor: str
    dim: int
    units: Indices
    is_output: bool
    filters: int = 0


@dataclass(frozen=True, eq=False)
class Group:
    """Channels that are removed unit by unit, each with all its slices.

    Parameters
    ----------
    name : str
        The first tensor that produces them.
    size : int
        Number of units.
    slices : tuple of Slice
        Everywhere they appear. A unit may own several indices of a dimension (the gates of
        an LSTM, a flattened feature map, an attention head).
    rows : array of int, optional
        The row of each unit. All rows must keep the same number of units:
        a grouped convolution needs equally many channels in each of its groups.
    roots : array of int
        The label of each unit in the analysis.
    stage : Stage, optional
        For channels mixed by shuffles: how many units of each row may be kept.
    """

    name: str
    size: int
    slices: tuple[Slice, ...]
    rows: Indices | None = None
    roots: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    stage: Stage | None = None

    @property
    def row_count(self) -> int | None:
        """The number of rows, or None if the group has no rows."""
        return None if self.rows is None else int(self.rows.max()) + 1

    def __str__(self) -> str:
        made = [s.tensor for s in self.slices if s.is_output]
        read = [s.tensor for s in self.slices if not s.is_output]
        parts = [f"{self.name}: {self.size} units"]
        if self.rows is not None:
            parts[0] += f" in {self.row_count} rows"
        parts += [f"  produced by {', '.join(made)}"] if made else []
        parts += [f"  also in {', '.join(read)}"] if read else []
        return "\n".join(parts)


@dataclass(frozen=True, eq=False)
class Pinned:
    """Channels that cannot be removed: where they are produced, how many, and why."""

    tensor: str
    dim: int
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.tensor} (dim {self.dim}, {self.size}): {self.reason}"


@dataclass(frozen=True, eq=False)
class ChannelGroups:
    """All channel groups of a model, and the channels that cannot be removed.

    ``print`` it to see both; :meth:`save_svg` draws it.
    """

    groups: tuple[Group, ...]
    pinned: tuple[Pinned, ...]
    unreached: tuple[str, ...]  # parameters that the example inputs never reach
    unknown: dict[str, str]  # ops without a rule, and where: their channels are kept
    analysis: Any

    def __repr__(self) -> str:
        units = sum(group.size for group in self.groups)
        listed = count(len(self.groups), "channel group")
        return f"ChannelGroups({listed}, {units:,} units, {len(self.pinned)} pinned)"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [(group.size, name_of(group)) for group in self.groups]
        return html_table(rows, ("units", "group"), repr(self), pinned_notes(self))

    def __iter__(self) -> Any:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def reason(self, tensor: str) -> str:
        """Return why the channels that a parameter produces cannot be removed; '' if they can."""
        if any(s.tensor == tensor and s.is_output for g in self.groups for s in g.slices):
            return ""
        if tensor in self.unreached:
            return "it is not reached by the example inputs"
        module, _, name = tensor.rpartition(".")
        if any(x.startswith(f"{module}.parametrizations.{name}.") for x in self.analysis.axes):
            return "its weight is computed; remove its parametrizations first"
        reasons = [p.reason for p in self.pinned if p.tensor == tensor]
        reasons += self.analysis.reasons(tensor)
        return reasons[0] if reasons else "it produces no channels"

    def count_parameters(self, removed: Removed | None = None) -> int:
        """Return how many parameters the model has without the removed units."""
        from lilliput.graph.costs import count_parameters

        return count_parameters(self.analysis, self.flags(removed or {}))

    def count_macs(self, removed: Removed | None = None) -> int:
        """Return the multiplications of a forward pass on the example inputs without the removed units.

        A Keras model that was read without example inputs counts a batch of one.
        """
        from lilliput.graph.costs import count_macs

        return count_macs(self.analysis, self.flags(removed or {}))

    def flags(self, removed: Removed) -> Flags:
        """Return the removed units as flags over the labels of the analysis."""
        flags: Flags = np.zeros(self.analysis.walk.labels.count, bool)
        for group in self.groups:
            if group.name in removed:
                flags[group.roots[np.asarray(removed[group.name], bool)]] = True
        return flags

    def save_svg(self, path: str | os.PathLike[str]) -> None:
        """Draw which layers produce and read the channels of each group, as an SVG file."""
        from lilliput.files import write_atomically
        from lilliput.graph.picture import draw

        write_atomically(path, draw(self).encode())

    def __str__(self) -> str:
        units = sum(group.size for group in self.groups)
        lines = [f"{count(len(self.groups), 'channel group')}, {units} units can be removed"]
        lines += [str(group) for group in self.groups]
        if self.pinned:
            lines.append(f"{len(self.pinned)} that stay:")
            lines += [f"  {pinned}" for pinned in self.pinned]
        if self.unknown:
            listed = ", ".join(f"{name} at {where}" for name, where in self.unknown.items())
            lines.append(f"ops without a rule, whose channels are kept: {listed}")
        if self.unreached:
            lines.append(f"not reached by the example inputs: {', '.join(self.unreached)}")
        return "\n".join(lines)


def layer_of(tensor: str) -> str:
    """Return the name of the layer that has a tensor."""
    return tensor.rpartition(".")[0] or tensor


def roles_of(group: Group, groups: ChannelGroups) -> tuple[list[str], list[str], list[str]]:
    """Return the layers that produce the channels of a group, read them, or only pass them on."""
    makers = {tensor for tensor, _ in getattr(groups.analysis.walk, "outputs", ())}
    makes = dict.fromkeys(layer_of(s.tensor) for s in group.slices if s.is_output)
    inputs = (s.tensor for s in group.slices if not s.is_output)
    reads = dict.fromkeys(layer_of(tensor) for tensor in inputs if tensor in makers)
    every = dict.fromkeys(layer_of(s.tensor) for s in group.slices)
    return list(makes), list(reads), [x for x in every if x not in makes and x not in reads]


def name_of(group: Group) -> str:
    """Return the title of a group in a table: one of the tensors that produce it, and how many more."""
    makers = sum(s.is_output for s in group.slices)
    return f"{group.name} and {makers - 1} more" if makers > 1 else group.name


def pinned_notes(groups: ChannelGroups) -> list[str]:
    """Return what is kept and why, as a few lines below a table."""
    reasons = why_kept(groups)
    notes = [f"kept: {names} ({reason})" for names, reason in reasons[:_MOST_NOTES]]
    left = len(reasons) - len(notes)
    return [*notes, f"… for {left} more reasons, print it"] if left else notes


def why_kept(groups: ChannelGroups) -> list[tuple[str, str]]:
    """Return each reason to keep channels, with the first few parameters that it applies to."""
    tensors: dict[str, list[str]] = {}
    for pinned in groups.pinned:
        tensors.setdefault(pinned.reason, []).append(pinned.tensor)
    found = []
    for reason, names in tensors.items():
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        found.append((", ".join(names[:_MOST_NAMES]) + more, reason))
    return found


def count(number: int, thing: str) -> str:
    """Return a number with its noun in the right form.

    Examples
    --------
    >>> count(1, "channel group"), count(2, "channel group")
    ('1 channel group', '2 channel groups')
    """
    return f"{number} {thing}" + ("" if number == 1 else "s")


def unit_of(roots: Sequence[int] | Indices, labels: Indices) -> Indices:
    """Return the position of each label's class among ``roots`` (sorted), or -1 if absent."""
    known = np.asarray(roots)
    place = np.searchsorted(known, labels).clip(max=max(len(known) - 1, 0))
    return np.where(known[place] == labels, place, -1)
