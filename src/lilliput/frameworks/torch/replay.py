"""Save shrunk torch models as named tensors, and shrink a model of the original class by a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import StateError
from lilliput.frameworks.shrinking import Shapes, check_cuts, compare_shapes, compare_types
from lilliput.frameworks.torch.build import build, build_in_place, capture_parts
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.cutting import shapes_of
from lilliput.frameworks.torch.example_inputs import Call, as_inputs
from lilliput.frameworks.torch.files import check_storable, check_tied, type_of
from lilliput.frameworks.torch.plan_checks import check_attributes, check_layers, check_run
from lilliput.frameworks.torch.sidecar import Sidecar
from lilliput.graph.plan import Plan

Tensors = Mapping[str, Tensor]
# Raised when building with a plan that does not fit.
_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a plain model."""
    if _is_compressed(model):
        raise StateError(
            "a compressor is attached to the shrunk model; call its strip() before saving."
        )
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise StateError(f"{name!r} in the state dict is not a tensor; it cannot be saved.")
    check_storable(state)
    return dict(state)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, Tensor)


def zeros_like(shape: list[int], dtype: str) -> Tensor:
    """Return a tensor of zeros."""
    return torch.zeros(shape, dtype=getattr(torch, dtype))


def as_arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a tensor, a tuple of arguments or a dict of named ones as arguments."""
    return as_inputs(example_inputs)


def as_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return the arguments of a call as example inputs."""
    return Call(args, kwargs)


def replay(
    model: nn.Module, plan: Plan, source: Shapes, tensors: Any, inputs: Any, folder: Path
) -> nn.Module:
    """Shrink a model in place by a plan and load its state; a captured graph is a new module."""
    if _is_compressed(model):
        raise StateError("a compressor is attached to the model; call its strip() before loading.")
    plain = plain_copy(model)
    compare_shapes(source, shapes_of(plain), folder)
    check_cuts(plan, source, folder)
    check_attributes(plan.attributes, model, folder)
    try:
        trial = build(plain, plan, inputs)
        trial.load_state_dict(tensors)
    except _FAILURES as error:
        raise StateError(f"{folder}: the plan does not fit this model ({error}).") from error
    _check_tensors(trial.state_dict(), tensors, folder)
    if plan.kind == "graph":
        return trial.train(model.training)
    check_layers(trial, folder)
    if inputs is not None:
        check_run(plain, trial, inputs, folder)
    build_in_place(model, plan, capture_parts(plain, plan, inputs))
    model.load_state_dict(tensors)
    return model


def _check_tensors(state: Tensors, tensors: Tensors, folder: Path) -> None:
    """Raise for tensors that a shrunk model would not store unchanged."""
    saved, here = ({k: type_of(t) for k, t in x.items()} for x in (tensors, state))
    compare_types(saved, here, folder)
    try:
        check_tied(state, tensors)
    except StateError as error:
        raise StateError(f"{folder}: {error}") from error


def _is_compressed(model: nn.Module) -> bool:
    return any(isinstance(module, Sidecar) for module in model.modules())
