"""Dynamic sizes of inputs: those the user requests, their form for ``torch.export``, and other sizes to try.

The form of ``dynamic_shapes=`` is that of ``torch.export`` and ``torch.onnx.export``: one entry for each
input, by name or in order. An entry maps axes to a name, a ``torch.export.Dim``, ``Dim.DYNAMIC``,
``Dim.AUTO``, or None for a fixed size, or lists these for all axes. A model with one input needs no outer
level.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, export, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lilliput.errors import ExportError, nearest
from lilliput.frameworks.exporting.simulation import Inputs
from lilliput.frameworks.exporting.sizes import BATCH, Axis, AxisPlace

_FORM = 'expected True, False, or axes by input, such as {"input_ids": {0: "batch", 1: "sequence"}}'


def tensors_in(nested: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    return [x for x in tree_leaves(nested) if isinstance(x, Tensor)]


def resized(inputs: Inputs, axes: Sequence[Axis], sizes: Mapping[str, int]) -> Inputs:
    """Return inputs with other sizes: the first entries along an axis, repeated if it gets longer.

    Examples
    --------
    >>> axis = Axis("batch", ((0, 0),), 2)
    >>> resized(((torch.tensor([5, 6]),), {}), [axis], {"batch": 3})
    ((tensor([5, 6, 5]),), {})
    """
    leaves, spec = tree_flatten(inputs)
    numbers = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    for axis in axes:
        size = sizes.get(axis.name, axis.size)
        for number, dim in axis.places if size != axis.size else ():
            tensor = leaves[numbers[number]]
            index = torch.arange(size, device=tensor.device) % axis.size
            leaves[numbers[number]] = tensor.index_select(dim, index)
    args, kwargs = tree_unflatten(leaves, spec)
    return args, kwargs


def open_shapes(model: nn.Module, inputs: Inputs, axes: Sequence[Axis]) -> Any:
    """Return the sizes of all inputs in the form of ``torch.export``, in the structure of the inputs."""
    leaves, spec = tree_flatten(inputs)
    numbers = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    told: list[Any] = [None] * len(leaves)
    for axis in axes:
        hint = export.Dim.DYNAMIC if axis.is_asked else export.Dim.AUTO
        for number, dim in axis.places:
            held = told[numbers[number]] or {}
            told[numbers[number]] = {**held, dim: axis.hint or hint}
    args, kwargs = tree_unflatten(told, spec)
    if not axes:
        return None
    if not kwargs:
        return args
    return {**dict(zip(input_names(model, (inputs[0], {})), args, strict=False)), **kwargs}


def in_order(program: Any, inputs: Inputs) -> dict[str, Tensor]:
    """Return the placeholders of the inputs in a trace, in the order of the inputs, by their names there."""
    users = set(program.graph_signature.user_inputs)
    nodes = [x for x in program.graph.nodes if x.op == "placeholder" and x.name in users]
    values = {x.name: x.meta["val"] for x in nodes if isinstance(x.meta.get("val"), Tensor)}
    args, kwargs = inputs
    if not args and values.keys() <= kwargs.keys():
        return {name: values[name] for name in kwargs if name in values}
    return values


def input_names(model: nn.Module, inputs: Inputs) -> list[str]:
    """Return the names of the tensors in the inputs: those of the parameters of ``forward``."""
    args, kwargs = inputs
    names = [*_parameters(model)[: len(args)]]
    names += [f"input_{i}" for i in range(len(names), len(args))]  # of *args
    found = []
    for name, value in [*zip(names, args, strict=True), *kwargs.items()]:
        count = sum(isinstance(x, Tensor) for x in tree_leaves(value))
        found += [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
    return found


def asked_axes(tensors: Sequence[Tensor], names: Sequence[str], asked: Any) -> list[Axis]:
    """Return the axes that the user requests to be dynamic, or raise if the request is invalid."""
    axes: dict[Any, Axis] = {}
    for number, spec in _by_input(asked, names):
        for dim, hint in _entries(spec, tensors[number], names[number]):
            place = (number, dim)
            key = hint if isinstance(hint, str) else _dim_name(hint) or place
            _add(axes, key, place, hint, tensors[number].shape[dim], names[number])
    return list(axes.values())


def _add(
    axes: dict[Any, Axis], key: Any, place: AxisPlace, hint: Any, size: int, name: str
) -> None:
    known = axes.get(key)
    if known is not None and known.size != size:
        raise ExportError(
            f"dynamic_shapes: {key!r} is {known.size} in one of the example inputs and {size} in {name!r}; "
            "sizes that share a name must be equal."
        )
    if known is not None:
        axes[key] = replace(known, places=(*known.places, place))
        return
    is_auto = str(hint) == str(export.Dim.AUTO)
    called = key if isinstance(key, str) else BATCH if place == (0, 0) else ""
    told = None if isinstance(hint, str) else hint
    axes[key] = Axis(called, (place,), size, 0, told, is_asked=not is_auto)


def _by_input(asked: Any, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Yield the index of a tensor, and the request for it."""
    if isinstance(asked, Mapping) and len(names) == 1 and all(isinstance(k, int) for k in asked):
        asked = (asked,)
    if isinstance(asked, Mapping):
        for key, spec in asked.items():
            if key not in names:
                raise ExportError(
                    f"dynamic_shapes: the model has no input {key!r}; expected some of "
                    f"{', '.join(map(repr, names))}.{nearest(str(key), names)}"
                )
            yield names.index(key), spec
    elif isinstance(asked, Sequence) and not isinstance(asked, str) and len(asked) == len(names):
        yield from enumerate(asked)
    else:
        raise ExportError(f"dynamic_shapes: received {asked!r} for inputs {list(names)}; {_FORM}.")


def _entries(spec: Any, tensor: Tensor, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the dynamic axes of one input, each with its specification."""
    if spec is None:
        return
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        spec = dict(enumerate(spec))
    if not isinstance(spec, Mapping):
        raise ExportError(f"dynamic_shapes: received {spec!r} for {name!r}; {_FORM}.")
    for key, hint in spec.items():
        dim = int(key) if isinstance(key, str) and key.isdigit() else key  # from a recipe
        if not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
            raise ExportError(
                f"dynamic_shapes: {name!r} has shape {tuple(tensor.shape)} and no axis {dim!r}."
            )
        if hint is None or isinstance(hint, int) or str(hint) == str(export.Dim.STATIC):
            continue
        if not isinstance(hint, str) and not _dim_name(hint) and not _is_hint(hint):
            raise ExportError(
                f"dynamic_shapes: received {hint!r} for axis {dim} of {name!r}; {_FORM}."
            )
        yield dim % tensor.dim(), hint


def _is_hint(hint: Any) -> bool:
    return type(hint) is type(export.Dim.AUTO)


def _dim_name(hint: Any) -> str:
    """Return the name of a ``torch.export.Dim``, or an empty string."""
    return str(getattr(hint, "__name__", "")) if isinstance(hint, export.Dim) else ""


def _parameters(model: nn.Module) -> list[str]:
    """Return the names of the parameters of ``forward``, in order."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [x.name for x in inspect.signature(model.forward).parameters.values() if x.kind in kinds]
