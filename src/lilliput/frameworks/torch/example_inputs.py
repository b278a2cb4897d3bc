"""Example inputs as the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from lilliput.errors import UnsupportedModelError

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Call:
    """Example inputs with both positional and named arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def fresh(inputs: Any) -> Any:
    """Return copies of inputs, for a model that may write to them."""
    if isinstance(inputs, Call):
        return Call(fresh(inputs.args), fresh(inputs.kwargs))
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)


def as_inputs(example_inputs: Any) -> Inputs:
    """Return example inputs as arguments: a tensor, a tuple of arguments, or a dict of named ones."""
    if isinstance(example_inputs, Call):
        return example_inputs.args, example_inputs.kwargs
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)) and len(example_inputs):
        return tuple(example_inputs), {}
    raise UnsupportedModelError(
        f"example_inputs: received {type(example_inputs).__name__}, expected the model's arguments: a "
        "tensor, a tuple of arguments, or a dict of named arguments."
    )
