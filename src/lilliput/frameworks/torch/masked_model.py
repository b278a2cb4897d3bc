"""Find what can be cut out of a masked model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from lilliput.errors import NothingToCutError
from lilliput.frameworks.torch.caches import find_shortcuts
from lilliput.frameworks.torch.copies import copy_model, plain_copy
from lilliput.frameworks.torch.copy_checks import check_copies, check_modes
from lilliput.frameworks.torch.cutting import named_tensors
from lilliput.frameworks.torch.dead import unseen_by_norms, zero_classes, zeros_in
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.graph import graph_of
from lilliput.frameworks.torch.instrument import set_narrow
from lilliput.frameworks.torch.norms import narrow_norms
from lilliput.frameworks.torch.release import find_known_groups, find_left_masks, find_unready
from lilliput.frameworks.torch.rewrite import Edit, find_edits
from lilliput.frameworks.torch.verify import Twin, make_references
from lilliput.graph.collect import find_groups
from lilliput.graph.cuts import Cut, balance, find_cuts, in_order
from lilliput.graph.dead import find_dead, one_left
from lilliput.graph.labels import Flags

log = logging.getLogger("lilliput")
_WHY_UNREAD = ("the example inputs never reach", "in evaluation, tables are read in place of")


@dataclass(frozen=True, eq=False)
class MaskedModel:
    """A masked model, and what can be cut out of it.

    Parameters
    ----------
    model : torch.nn.Module
        The user's model.
    plain : torch.nn.Module
        A copy in eval mode, with the masks applied and without compressors.
    masked : torch.nn.Module
        The model whose outputs have to be reproduced: the user's, or one with extended masks.
    groups : Groups
        The channels that are removed together.
    removed : array of bool
        Which classes of channels are removed.
    cuts : tuple of Cut
        The indices of tensors that are kept.
    edits : list of Edit
        Numbers in the code that change.
    notes : list of str
        Notes for the user.
    """

    model: nn.Module
    example_inputs: Any
    plain: nn.Module
    masked: nn.Module
    groups: Any
    removed: Flags
    cuts: tuple[Cut, ...]
    edits: list[Edit]
    notes: list[str]

    def costs(self, count: Callable[..., int]) -> tuple[int, int]:
        """Return a cost before and after, counted by a method of the groups."""
        return count(), count(self._removed_by_group())

    def removed_units(self) -> dict[str, tuple[int, int]]:
        """Return, for each group that is cut, the number of units removed and before."""
        units = self._removed_by_group()
        return {name: (int(x.sum()), len(x)) for name, x in units.items() if x.any()}

    def _removed_by_group(self) -> dict[str, Flags]:
        return {g.name: self.removed[g.roots] for g in self.groups.groups}


def analyse_masks(model: nn.Module, example_inputs: Any, extend_masks: bool) -> MaskedModel:
    """Return a masked model and its cuts, or raise if nothing can be cut."""
    check_modes(unwrapped(model))
    check_copies(unwrapped(model), example_inputs)
    plain = plain_copy(model, share=not extend_masks)
    groups = find_known_groups(model, plain, example_inputs)
    if groups is None:
        groups = find_groups(graph_of(plain, example_inputs))
    notes: list[str] = []
    masked = _extend(model, plain, groups, example_inputs, notes) if extend_masks else model
    removed = _find_removed(plain, masked, groups)
    cuts = tuple(in_order(groups.analysis, removed, find_cuts(groups.analysis, removed)))
    edits = find_edits(groups.analysis, removed)
    if not cuts:
        raise NothingToCutError(
            f"{find_unready(model)}there is nothing to cut: no channel is zero in all the parameters "
            "that produce, scale or read it. Prune with example_inputs (masks then cover whole groups) "
            "and a sparsity of at least one channel, or allow extend_masks=True; a model that was "
            "shrunk already has nothing left to cut."
        )
    notes += _notes_on_the_rest(model, plain, groups.unreached)
    return MaskedModel(model, example_inputs, plain, masked, groups, removed, cuts, edits, notes)


def _find_removed(plain: nn.Module, masked: nn.Module, groups: Any) -> Flags:
    """Return the classes of channels that are zero wherever they appear."""
    flags = groups.flags(one_left(find_dead(groups, zeros_in(_parameters(plain)))))
    flags &= unseen_by_norms(groups.analysis, unwrapped(masked))
    return balance(groups.analysis, flags)


def _extend(
    model: nn.Module, plain: nn.Module, groups: Any, example_inputs: Any, notes: list[str]
) -> nn.Module:
    """Extend the masks of channels whose filters are zero; return the model to compare with."""
    dead = find_dead(groups, zeros_in(_parameters(plain)), only_outputs=True)
    (before,) = make_references(model, example_inputs, has_casts=True)
    flags = balance(groups.analysis, groups.flags(dead))
    zero_classes(groups.analysis, flags, named_tensors(plain))
    masked = copy_model(plain)
    for path, narrow in narrow_norms(groups.analysis, masked, flags).items():
        set_narrow(masked.get_submodule(path), narrow)
    change = before.error(Twin(copy_model(masked), before.precision).model)
    if change > before.tolerance:
        note = (
            "masks covered only filters and were extended; this changes the outputs by up to "
            f"{change:.1%} of the largest"
        )
        notes.append(note)
        log.warning("speedup: %s.", note)
    return masked


def _notes_on_the_rest(model: nn.Module, plain: nn.Module, unreached: list[str]) -> list[str]:
    """Return notes on parameters that the graph does not read, and on masks that are no longer enforced."""
    notes = []
    if unreached:
        notes.append(
            f"{_WHY_UNREAD[bool(find_shortcuts(plain, unreached))]} "
            f"{', '.join(unreached[:4])}"
            f"{' …' if len(unreached) > 4 else ''}; that code was neither cut nor checked"
        )
    left = find_left_masks(model)
    if left:
        notes.append(f"the zeros of {', '.join(left)} are no longer enforced in training")
    return notes


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))
