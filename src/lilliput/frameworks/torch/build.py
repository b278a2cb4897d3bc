"""Apply a plan to a copy, to the user's model, and to the state of an optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.attributes import set_attributes
from lilliput.frameworks.torch.caches import drop_caches, tensors_in
from lilliput.frameworks.torch.captured_module import capture_part, capture_whole
from lilliput.frameworks.torch.copies import shared_copy
from lilliput.frameworks.torch.cutting import apply_cuts, cut_all, named_tensors
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.layer_sizes import fix_sizes
from lilliput.graph.cuts import Cut, by_tensor
from lilliput.graph.plan import Plan

Parts = dict[tuple[str, bool], nn.Module]  # by path ("" is all), and whether sizes are left open


def build(
    plain: nn.Module, plan: Plan, example_inputs: Any, known: Parts | None = None
) -> nn.Module:
    """Return a shrunk copy of a plain model; ``known`` caches captured parts between plans.

    Parameters that are not cut share memory with those of the plain model.
    """
    known = {} if known is None else known
    if plan.kind == "graph":
        if ("", plan.any_size) not in known:
            model = shared_copy(plain)
            graph = capture_whole(model, plan.cuts, example_inputs, plan.any_size)
            keep_unsaved(model, graph)
            known["", plan.any_size] = graph
        return shared_copy(known["", plan.any_size])
    model = shared_copy(plain)
    build_in_place(model, plan, capture_parts(plain, plan, example_inputs, known))
    return model


def capture_parts(
    plain: nn.Module, plan: Plan, example_inputs: Any, known: Parts | None = None
) -> dict[str, nn.Module]:
    """Return the captured parts of a plan, from a plain model in eval mode."""
    if not plan.graphs or plan.kind == "graph":
        return {}
    known = {} if known is None else known
    inputs = as_inputs(example_inputs)
    for path in plan.graphs:
        if (path, plan.any_size) not in known:
            part = capture_part(shared_copy(plain), path, plan.cuts, inputs, plan.any_size)
            known[path, plan.any_size] = part
    # Copies: each model puts its own parameters into them.
    return {path: copy.deepcopy(known[path, plan.any_size]) for path in plan.graphs}


def build_in_place(model: nn.Module, plan: Plan, parts: Mapping[str, nn.Module]) -> None:
    """Cut a model, set the size attributes of its modules, and replace the captured parts."""
    touched = {cut.tensor.rpartition(".")[0] for cut in plan.cuts}
    apply_cuts(model, plan.cuts)
    owners = {id(t) for n, t in _tensors(model) if n.rpartition(".")[0] in touched}
    for module in model.modules():
        own = [*module._parameters.values(), *module._buffers.values()]
        if any(id(t) in owners for t in own if t is not None):
            fix_sizes(module)
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            fix_sizes(module)
    set_attributes(model, plan.attributes)
    drop_caches(model)
    for path, part in parts.items():
        _swap(model, path, part)


def _swap(model: nn.Module, path: str, part: nn.Module) -> None:
    """Replace a module by a captured graph, with the module's own parameters."""
    old = model.get_submodule(path)
    for name, value in vars(old).items():
        if not name.startswith("_") and not hasattr(part, name) and not tensors_in(value):
            setattr(part, name, value)  # its parent may read them
    for name, tensor in named_tensors(old).items():
        owner, _, leaf = name.rpartition(".")
        with suppress(AttributeError):  # tensors that the graph does not read are not in it
            held = part.get_submodule(owner)
            if leaf in held._parameters:
                held._parameters[leaf] = tensor
            elif leaf in held._buffers:
                held._buffers[leaf] = tensor
    keep_unsaved(old, part)
    model.set_submodule(path, part.train(old.training))


def keep_unsaved(old: nn.Module, captured: nn.Module) -> None:
    """Exclude buffers from the state dict of a graph that were not in the module's."""
    for path, module in captured.named_modules():
        with suppress(AttributeError):
            unsaved = old.get_submodule(path)._non_persistent_buffers_set
            module._non_persistent_buffers_set |= unsaved & module._buffers.keys()


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def cut_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Any],
    cuts: Sequence[Cut],
    shapes: dict[str, tuple[int, ...]],
) -> None:
    """Cut the optimizer state of each parameter along with the parameter."""
    for name, listed in by_tensor(cuts).items():
        state = optimizer.state.get(tensors[name], {})
        for key, record in state.items():
            if isinstance(record, Tensor) and tuple(record.shape) == shapes[name]:
                state[key] = cut_all(record, listed)


def hand_over(optimizer: torch.optim.Optimizer, pairs: dict[Tensor, Tensor]) -> None:
    """Replace parameters in an optimizer by others."""
    for group in optimizer.param_groups:
        group["params"] = [pairs.get(p, p) for p in group["params"]]
    for old, new in pairs.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
