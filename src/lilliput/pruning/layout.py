"""Which selected layers prune which channel groups, and every parameter affected by that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Decision, Selection
from lilliput.errors import Problem
from lilliput.graph.groups import Group, Slice
from lilliput.pruning.untraced import UntracedLayers

log = logging.getLogger("lilliput")

Flags = NDArray[np.bool_]
_TARGETS = ("sparsity", "final_sparsity", "total_sparsity", "max_macs", "max_params")


@dataclass(frozen=True, eq=False)
class Member:
    """A selected layer in a group, and the slice of its output channels."""

    layer: LayerInfo
    slice: Slice

    @property
    def key(self) -> tuple[str, int]:
        """The layer, and the dimension of its weight that is scored."""
        return self.layer.name, self.layer.out_axis

    @property
    def units(self) -> NDArray[np.int64]:
        """The unit of each output channel of the layer, -1 for none."""
        units, layer = self.slice.units, self.layer
        # The weight of a grouped transposed convolution may have the channels of one group only.
        is_shared = layer.out_groups > 1 and self.slice.dim == layer.out_axis and units.ndim == 1
        return np.tile(units, layer.out_groups) if is_shared else units.ravel()


@dataclass(frozen=True, eq=False)
class Pruned:
    """A group that is pruned, and the selected layers that produce it."""

    group: Group
    members: tuple[Member, ...]

    @property
    def channels(self) -> int:
        """Channels per unit of the first layer."""
        return max(1, int((self.members[0].units >= 0).sum()) // self.group.size)

    def score(self, scores: Mapping[tuple[str, int], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the score of each unit: the sum over its channels, averaged over the layers."""
        total = np.zeros(self.group.size)
        for member in self.members:
            units = member.units
            inside = units >= 0
            np.add.at(total, units[inside], scores[member.key][inside])
        return total / len({member.layer.name for member in self.members})

    def removed(self, rows_of: Callable[[LayerInfo], Flags]) -> Flags:
        """Return which units have no kept channel in the mask of the first layer that contains them."""
        kept, seen = np.zeros((2, self.group.size), bool)
        for member in self.members:
            units = member.units
            here = (units >= 0) & ~seen[units]
            np.logical_or.at(kept, units[here], rows_of(member.layer)[here])
            seen[units[here]] = True
        return ~kept & seen


class Layout:
    """The groups that are pruned, and the parameters that have to be masked as a result.

    Parameters
    ----------
    groups : ChannelGroups
        All groups of the model.
    selection : Selection
        The layers selected by the rules.
    parameters : mapping of str to LayerInfo
        Every parameter of the model under its full names.
    obstacle : callable
        Returns why the criterion cannot score a layer, or an empty string if it can.
    filters_only : bool
        Mask only the filters and biases of the selected layers, not the parameters that scale or read them.
    reads_weights : bool
        Whether the criterion can score a weight along any of its dimensions.
    """

    def __init__(
        self,
        groups: Any,
        selection: Selection,
        parameters: Mapping[str, LayerInfo],
        obstacle: Callable[[LayerInfo], str],
        filters_only: bool = False,
        reads_weights: bool = False,
    ) -> None:
        self.groups = groups
        owned = _Owned(groups.groups)
        protected = _protected(selection, owned)
        decisions = []
        members: dict[str, list[Member]] = {}
        for decision in selection.decisions:
            if decision.is_chosen:
                found = owned.of(decision.layer)
                why = obstacle(decision.layer) or _why_not(decision.layer, found, protected, groups)
                if not reads_weights and any(_is_elsewhere(decision.layer, s) for _, s in found):
                    why = why or "this criterion scores channels, not heads"
                decision = replace(decision, obstacle=why)
                for group, slice_ in [] if why else found:
                    if group.name not in protected:
                        layer = _along(decision.layer, slice_)
                        members.setdefault(group.name, []).append(Member(layer, slice_))
            decisions.append(decision)
        if not filters_only:
            decisions = [_followed(decision, owned, members) for decision in decisions]
        self.selection = Selection(tuple(decisions), tuple(_problems(decisions)))
        self.pruned = [
            Pruned(group, tuple(members[group.name]))
            for group in groups.groups
            if group.name in members
        ]
        self.is_traced = not (isinstance(groups, UntracedLayers) or filters_only)
        for each in self.pruned:
            _note_differing_targets(each)
        self.slices = _slices_of(self.pruned, parameters)
        self.holders = _holders(self.selection.chosen)
        if filters_only:
            self.slices = _own_filters(self.slices, self.holders)
        self.companions = [parameters[x] for x in self.slices if x not in self.holders]

    def masks(self, removed: Mapping[str, Flags]) -> dict[tuple[str, str], Flags]:
        """Return, for each wrapper and mask, the entries that are kept when these units are removed."""
        masks = {}
        for tensor, (shape, slices) in self.slices.items():
            keep = np.ones(shape, bool)
            for group, slice_ in slices:
                if group.name in removed:
                    _cut(keep, slice_, removed[group.name])
            masks[self.holders.get(tensor, (tensor, "weight_mask"))] = keep
        return masks


def _along(layer: LayerInfo, slice_: Slice) -> LayerInfo:
    """Return a layer that counts its channels along the dimension of a slice, which differs for heads."""
    return replace(layer, out_axis=slice_.dim) if _is_elsewhere(layer, slice_) else layer


def _is_elsewhere(layer: LayerInfo, slice_: Slice) -> bool:
    is_single = slice_.units.ndim == 1 and layer.out_groups == 1
    return is_single and slice_.dim != layer.out_axis


class _Owned:
    """The slices of the output channels of layers."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.by_tensor: dict[str, list[tuple[Group, Slice]]] = {}
        for group in groups:
            for slice_ in group.slices:
                self.by_tensor.setdefault(slice_.tensor, []).append((group, slice_))

    def of(self, layer: LayerInfo) -> list[tuple[Group, Slice]]:
        """Return the groups of a layer's output channels; for a norm layer, also those of its inputs."""
        found = [x for name in layer.tensor_names for x in self.by_tensor.get(name, ())]
        return [x for x in found if x[1].is_output or len(layer.shape) == 1]


def _protected(selection: Selection, owned: _Owned) -> dict[str, str]:
    """Return the groups of excluded layers, each with the reason."""
    return {
        group.name: f"they are removed with those of {decision.layer.name!r}, {decision.why}"
        for decision in selection.decisions
        if decision.excluded
        for group, _ in owned.of(decision.layer)
    }


def _followed(
    decision: Decision, owned: _Owned, members: Mapping[str, Sequence[Member]]
) -> Decision:
    """Return the decision on a layer that no rule names, with the one that it loses channels with."""
    if decision.rule is not None or decision.is_chosen:
        return decision
    groups = [group.name for group, _ in owned.of(decision.layer) if group.name in members]
    return replace(decision, follows=members[groups[0]][0].layer.name) if groups else decision


def _why_not(
    layer: LayerInfo,
    found: Sequence[tuple[Group, Slice]],
    protected: Mapping[str, str],
    groups: Any,
) -> str:
    if not found:
        return str(groups.reason(layer.tensor_name)) or "it produces no channels"
    if all(group.name in protected for group, _ in found):
        return protected[found[0][0].name]
    return ""


def _problems(decisions: Sequence[Decision]) -> list[Problem]:
    """Return a problem for each explicitly named layer that cannot be pruned; log the others."""
    problems = []
    stuck = [decision for decision in decisions if decision.obstacle]
    for decision in stuck:
        layer = decision.layer
        text = f"the channels of {layer.name!r} cannot be removed: {decision.obstacle}"
        if layer.names & set(layer.config.get("op_names", ())):
            problems.append(Problem(f"rule {decision.rule} → op_names", f"{text}."))
        else:
            log.info("%s; it is left alone.", text)
    if stuck and not problems and not any(decision.is_chosen for decision in decisions):
        layer, why = stuck[0].layer, stuck[0].obstacle
        text = f"no selected layer has channels that can be removed ({layer.name!r}: {why})."
        problems.append(Problem("", text))
    return problems


def _note_differing_targets(pruned: Pruned) -> None:
    asked = {m.layer.name: [m.layer.config.get(key) for key in _TARGETS] for m in pruned.members}
    if len({str(values) for values in asked.values()}) > 1:
        log.info(
            "the channels of %s are removed together, but their rules differ: the smallest sparsity "
            "applies to all of them.",
            ", ".join(repr(name) for name in asked),
        )


def _slices_of(
    pruned: Iterable[Pruned], parameters: Mapping[str, LayerInfo]
) -> dict[str, tuple[tuple[int, ...], list[tuple[Group, Slice]]]]:
    """Return shape and slices of each affected parameter, under its first name."""
    found: dict[str, tuple[tuple[int, ...], list[tuple[Group, Slice]]]] = {}
    for each in pruned:
        for slice_ in each.group.slices:
            layer = parameters.get(slice_.tensor)
            if layer is not None:  # buffers need no mask: what reads them is multiplied by zero
                found.setdefault(layer.name, (layer.shape, []))[1].append((each.group, slice_))
    return found


def _own_filters(slices: Mapping[str, Any], holders: Mapping[str, Any]) -> dict[str, Any]:
    """Return the slices along the output channels of the selected layers."""
    own = {}
    for tensor, (shape, pieces) in slices.items():
        kept = [x for x in pieces if x[1].is_output or len(shape) == 1]
        if tensor in holders and kept:
            own[tensor] = (shape, kept)
    return own


def _holders(layers: Iterable[LayerInfo]) -> dict[str, tuple[str, str]]:
    """Return which wrapper's mask covers a parameter, for weights and biases of selected layers."""
    holders = {}
    for layer in layers:
        owner = layer.owners[0]
        for name in layer.tensor_names:
            holders[name] = (layer.name, "weight_mask")
        if len(layer.owners) == 1 and owner.bias_name is not None:
            for path in owner.paths:
                bias = f"{path}.{owner.bias_name}" if path else owner.bias_name
                holders[bias] = (layer.name, "bias_mask")
    return holders


def _cut(keep: Flags, slice_: Slice, removed: Flags) -> None:
    """Set the entries of removed units to False, in place."""
    units = slice_.units
    gone = (units >= 0) & removed[units]
    if units.ndim == 1:
        np.moveaxis(keep, slice_.dim, 0)[gone] = False
        return
    # Filters are ordered by group; the meaning of an input index depends on the group.
    by_filter = np.moveaxis(keep, (slice_.filters, slice_.dim), (0, 1))
    for block, lost in zip(np.split(by_filter, len(gone)), gone, strict=True):
        block[:, lost] = False
