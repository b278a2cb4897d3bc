"""Shrink a masked model, and verify that the result is the same function."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from lilliput.errors import NothingToCutError
from lilliput.frameworks.shrinking import Options, Shrunk
from lilliput.frameworks.torch.attributes import held_value
from lilliput.frameworks.torch.build import (
    build,
    build_in_place,
    capture_parts,
    cut_optimizer,
    hand_over,
)
from lilliput.frameworks.torch.caches import find_shortcuts
from lilliput.frameworks.torch.captured_module import CapturedModule
from lilliput.frameworks.torch.chance import drawn_from
from lilliput.frameworks.torch.copies import copy_model, plain_copy
from lilliput.frameworks.torch.copy_checks import check_copies, check_modes
from lilliput.frameworks.torch.cutting import named_tensors, shapes_of
from lilliput.frameworks.torch.dead import unseen_by_norms, zero_classes, zeros_in
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.graph import graph_of
from lilliput.frameworks.torch.instrument import set_narrow
from lilliput.frameworks.torch.mask_files import apply_masks, find_masks, put_back
from lilliput.frameworks.torch.norms import narrow_norms
from lilliput.frameworks.torch.perturb import Noise
from lilliput.frameworks.torch.plans import Plans
from lilliput.frameworks.torch.release import (
    check_model,
    check_optimizer,
    find_known_groups,
    find_left_masks,
    find_unready,
    free_copy,
    optimizer_of,
    release,
)
from lilliput.frameworks.torch.rewrite import find_edits, has_casts
from lilliput.frameworks.torch.verify import Twin, make_references
from lilliput.frameworks.torch.widths import show
from lilliput.graph.collect import find_groups
from lilliput.graph.cuts import balance, find_cuts, in_order
from lilliput.graph.dead import Zeros, find_dead, one_left
from lilliput.graph.labels import Flags
from lilliput.graph.plan import Plan

log = logging.getLogger("lilliput")
_WHY_UNREAD = ("the example inputs never reach", "in evaluation, tables are read in place of")
RUNS_AT_ONCE = True


def shrink(model: nn.Module, example_inputs: Any, options: Options) -> Shrunk:
    """Cut masked channels out of a model; see :func:`lilliput.speedup.shrink.speedup`."""
    check_model(model)
    masks = None if options.masks is None else find_masks(options.masks, model)
    if not options.inplace:
        model = free_copy(model)
    if masks is None:
        return _shrink(model, example_inputs, options)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    held = {name: parameters[name].detach().clone() for name in masks}
    apply_masks(model, masks)
    try:
        return _shrink(model, example_inputs, options)
    except BaseException:
        put_back(model, held)
        raise


def _shrink(model: nn.Module, example_inputs: Any, options: Options) -> Shrunk:
    optimizer = options.optimizer if options.optimizer is not None else optimizer_of(model)
    if optimizer is not None:
        check_optimizer(optimizer, model)
    work = _Work(model, example_inputs, options.extend_masks)
    source = shapes_of(work.plain)
    plan, error = work.find_plan(options.allow_graph)
    shrunk = work.carry_out(plan, optimizer)
    return Shrunk(
        model=shrunk,
        before=work.plain,
        inputs=example_inputs,
        plan=plan,
        error=error,
        parameters=work.count_parameters(shrunk),
        macs=work.costs(work.groups.count_macs),
        removed=work.removed_units(),
        remembered=work.changed_widths(),
        notes=work.all_notes(),
        source=source,
    )


def zeros_of(model: nn.Module) -> Zeros:
    """Return which slices of a model's parameters are zero, masks applied."""
    return zeros_in(dict(plain_copy(model, share=True).named_parameters(remove_duplicate=False)))


class _Work(Plans):
    """One shrinking: the model and its analysis."""

    def __init__(self, model: nn.Module, example_inputs: Any, extend_masks: bool) -> None:
        super().__init__()
        self.model, self.example_inputs = model, example_inputs
        check_modes(unwrapped(model))
        check_copies(unwrapped(model), example_inputs)
        self.plain = plain_copy(model, share=not extend_masks)
        self.groups = find_known_groups(model, self.plain, example_inputs)
        if self.groups is None:
            self.groups = find_groups(graph_of(self.plain, example_inputs))
        self.analysis = self.groups.analysis
        self.masked = self._extend() if extend_masks else model
        self.removed = self._find_removed()
        found = find_cuts(self.analysis, self.removed)
        self.cuts = tuple(in_order(self.analysis, self.removed, found))
        self.edits = find_edits(self.analysis, self.removed)
        if not self.cuts:
            raise NothingToCutError(
                f"{find_unready(model)}there is nothing to cut: no channel is zero in all the parameters "
                "that produce, scale or read it. Prune with example_inputs (masks then cover whole groups) "
                "and a sparsity of at least one channel, or allow extend_masks=True; a model that was "
                "shrunk already has nothing left to cut."
            )
        if self.groups.unreached:
            self.notes.append(
                f"{_WHY_UNREAD[bool(find_shortcuts(self.plain, self.groups.unreached))]} "
                f"{', '.join(self.groups.unreached[:4])}"
                f"{' …' if len(self.groups.unreached) > 4 else ''}; that code was neither cut nor checked"
            )
        left = find_left_masks(model)
        if left:
            self.notes.append(f"the zeros of {', '.join(left)} are no longer enforced in training")
        self.noise = Noise(unwrapped(self.masked), self.cuts)
        drawn = drawn_from(self._make_references)
        if drawn:
            self.reference.check_chance(unwrapped(self.masked), drawn)

    def _make_references(self) -> None:
        self.reference, self.noisy_reference = make_references(
            unwrapped(self.masked), self.example_inputs, has_casts(self.analysis), self.noise.add
        )

    def _find_removed(self) -> Flags:
        parameters = dict(self.plain.named_parameters(remove_duplicate=False))
        flags = self.groups.flags(one_left(find_dead(self.groups, zeros_in(parameters))))
        flags &= unseen_by_norms(self.analysis, unwrapped(self.masked))
        return balance(self.analysis, flags)

    def _extend(self) -> nn.Module:
        """Extend the masks of channels whose filters are zero; return the model to compare with."""
        tensors = named_tensors(self.plain)
        parameters = dict(self.plain.named_parameters(remove_duplicate=False))
        dead = find_dead(self.groups, zeros_in(parameters), only_outputs=True)
        (before,) = make_references(self.model, self.example_inputs, has_casts=True)
        flags = balance(self.analysis, self.groups.flags(dead))
        zero_classes(self.analysis, flags, tensors)
        masked = copy_model(self.plain)
        for path, narrow in narrow_norms(self.analysis, masked, flags).items():
            set_narrow(masked.get_submodule(path), narrow)
        change = before.error(Twin(copy_model(masked), before.precision).model)
        if change > before.tolerance:
            self.notes.append(
                "masks covered only filters and were extended; this changes the outputs by up to "
                f"{change:.1%} of the largest"
            )
            log.warning("speedup: %s.", self.notes[-1])
        return masked

    def carry_out(self, plan: Plan, optimizer: Any) -> nn.Module:
        """Apply a plan that passed to the user's model."""
        model = unwrapped(self.model)
        modes = {name: module.training for name, module in model.named_modules()}
        parts = capture_parts(self.plain, plan, self.example_inputs, self._parts)
        is_graph = plan.kind == "graph"
        graph = build(self.plain, plan, self.example_inputs, self._parts) if is_graph else None
        for parameter in () if graph is None else graph.parameters():
            parameter.data = parameter.data.clone()  # uncut tensors are shared
        release(model)
        before = named_tensors(model)
        shapes = {name: tuple(tensor.shape) for name, tensor in before.items()}
        if graph is not None:
            if optimizer is not None:
                cut_optimizer(optimizer, before, plan.cuts, shapes)
                hand_over(optimizer, {before[n]: p for n, p in graph.named_parameters()})
            return graph.train(model.training)
        with torch.no_grad():
            for name, parameter in self.plain.named_parameters():
                before[name].copy_(parameter)  # masks may have been extended
        build_in_place(model, plan, parts)
        for name, module in model.named_modules():
            module.training = modes.get(name, model.training)
        if optimizer is not None:
            cut_optimizer(optimizer, before, plan.cuts, shapes)
        return self.model

    def changed_widths(self) -> dict[str, tuple[int, int]]:
        """Return the width attributes of modules, before and after."""
        held = {k: held_value(self.plain.get_submodule(k[0]), k[1]) for k in self.remembered}
        return {".".join(filter(None, k)): (held[k], new) for k, new in self.remembered.items()}

    def all_notes(self) -> tuple[str, ...]:
        """Return the notes for the user, those on the outputs first."""
        notes = self.notes
        if self.outdated:
            listed = show({key: str(value) for key, value in self.outdated.items()})
            notes = [
                *notes,
                f"{listed}: widths from before the cut, read those of the layers instead",
            ]
        return tuple(notes)

    def count_parameters(self, shrunk: nn.Module) -> tuple[int, int]:
        """Return the number of parameters before and after; a graph has only those it reads."""
        before, after = self.costs(self.groups.count_parameters)
        is_graph = isinstance(shrunk, CapturedModule)
        return before, sum(p.numel() for p in shrunk.parameters()) if is_graph else after

    def costs(self, count: Any) -> tuple[int, int]:
        """Return a cost before and after."""
        return count(), count(self._units())

    def _units(self) -> dict[str, Flags]:
        return {g.name: self.removed[g.roots] for g in self.groups.groups}

    def removed_units(self) -> dict[str, tuple[int, int]]:
        """Return how many units of each group were removed, of how many."""
        return {name: (int(x.sum()), len(x)) for name, x in self._units().items() if x.any()}
