"""Shrink a masked model, and verify that the result is the same function."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lilliput.frameworks.shrinking import Options, Shrunk
from lilliput.frameworks.torch.attributes import held_value
from lilliput.frameworks.torch.build import (
    Parts,
    build,
    build_in_place,
    capture_parts,
    cut_optimizer,
    hand_over,
)
from lilliput.frameworks.torch.captured_module import CapturedModule
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.cutting import named_tensors, shapes_of
from lilliput.frameworks.torch.dead import zeros_in
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.mask_files import apply_masks, find_masks, put_back
from lilliput.frameworks.torch.masked_model import MaskedModel, analyse_masks
from lilliput.frameworks.torch.plan_search import Found, PlanSearch
from lilliput.frameworks.torch.release import (
    check_model,
    check_optimizer,
    free_copy,
    optimizer_of,
    release,
)
from lilliput.frameworks.torch.trials import Trials
from lilliput.frameworks.torch.widths import show
from lilliput.graph.dead import Zeros
from lilliput.graph.plan import TIED, Attributes, Plan

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
    work = analyse_masks(model, example_inputs, options.extend_masks)
    source = shapes_of(work.plain)
    trials = Trials(work)
    found = PlanSearch(work, trials).find(options.allow_graph)
    shrunk = _carry_out(work, found.plan, trials.parts, optimizer)
    return Shrunk(
        model=shrunk,
        before=work.plain,
        inputs=example_inputs,
        plan=found.plan,
        error=found.error,
        parameters=_count_parameters(work, shrunk),
        macs=work.costs(work.groups.count_macs),
        removed=work.removed_units(),
        remembered=_changed_widths(work.plain, found.remembered),
        notes=_all_notes(work, found),
        source=source,
    )


def zeros_of(model: nn.Module) -> Zeros:
    """Return which slices of a model's parameters are zero, masks applied."""
    return zeros_in(dict(plain_copy(model, share=True).named_parameters(remove_duplicate=False)))


def _carry_out(work: MaskedModel, plan: Plan, known: Parts, optimizer: Any) -> nn.Module:
    """Apply a plan that passed to the user's model."""
    model = unwrapped(work.model)
    modes = {name: module.training for name, module in model.named_modules()}
    parts = capture_parts(work.plain, plan, work.example_inputs, known)
    is_graph = plan.kind == "graph"
    graph = build(work.plain, plan, work.example_inputs, known) if is_graph else None
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
        for name, parameter in work.plain.named_parameters():
            before[name].copy_(parameter)  # masks may have been extended
    build_in_place(model, plan, parts)
    for name, module in model.named_modules():
        module.training = modes.get(name, model.training)
    if optimizer is not None:
        cut_optimizer(optimizer, before, plan.cuts, shapes)
    return work.model


def _changed_widths(plain: nn.Module, remembered: Attributes) -> dict[str, tuple[int, int]]:
    """Return the width attributes of modules, before and after."""
    held = {k: held_value(plain.get_submodule(k[0]), k[1]) for k in remembered}
    return {".".join(filter(None, k)): (held[k], new) for k, new in remembered.items()}


def _all_notes(work: MaskedModel, found: Found) -> tuple[str, ...]:
    """Return the notes for the user, those on the outputs first."""
    is_tied = bool(found.plan.graphs) and not found.plan.any_size
    notes = [*([TIED] if is_tied else []), *work.notes, *found.notes]
    if found.outdated:
        listed = show({key: str(value) for key, value in found.outdated.items()})
        notes.append(f"{listed}: widths from before the cut, read those of the layers instead")
    return tuple(notes)


def _count_parameters(work: MaskedModel, shrunk: nn.Module) -> tuple[int, int]:
    """Return the number of parameters before and after; a graph has only those it reads."""
    before, after = work.costs(work.groups.count_parameters)
    is_graph = isinstance(shrunk, CapturedModule)
    return before, sum(p.numel() for p in shrunk.parameters()) if is_graph else after
