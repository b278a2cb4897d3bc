"""A shrunk model as a folder: safetensors, and the plan that shrinks the original class again."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import JsonValue, ValidationError
from torch import Tensor, nn

from lilliput.compact.format import encode
from lilliput.compact.saving import has_plan, read_weights, without_negative_zeros
from lilliput.compact.saving import load as load_weights
from lilliput.compact.tensors import Stored
from lilliput.errors import StateError
from lilliput.files import make_folder, write_atomically
from lilliput.frameworks.torch.capture import Call, as_inputs, plain_copy
from lilliput.frameworks.torch.cutting import shapes_of
from lilliput.frameworks.torch.files import dump_tensors, from_bits, parse_tensors, to_bits
from lilliput.frameworks.torch.sidecar import Sidecar
from lilliput.graph.cuts import Cut
from lilliput.speedup.build import build, build_in_place, capture_parts
from lilliput.speedup.plan_checks import (
    check_attributes,
    check_cuts,
    check_layers,
    check_run,
    compare_shapes,
)
from lilliput.speedup.result import Plan
from lilliput.store import (
    NAME,
    ModelFile,
    Strict,
    file_of,
    read_document,
    read_tensors,
    write_pair,
)

_WHAT = "shrunk model"
_LARGEST = 2**28  # elements of an example input


class _Cut(Strict):
    tensor: str
    dim: int
    keep: list[int] | list[list[int]]


class _Attribute(Strict):
    module: str
    name: str
    value: int | list[int]
    is_tuple: bool = False


class _Document(Strict):
    format: Literal[1]
    kind: Literal["shrunk model"]
    source: dict[str, list[int]]  # names and shapes of the original model's tensors
    cuts: list[_Cut]
    attributes: list[_Attribute]
    graphs: list[str]
    any_size: bool
    inputs: JsonValue
    tensors: ModelFile | None = None  # none in a compact file, which holds them itself


def save_shrunk(
    model: nn.Module, plan: Plan, source: dict[str, list[int]], inputs: Any, folder: str | Path
) -> None:
    """Write a shrunk model; the JSON comes last, so a crash leaves the old folder or the new one."""
    data = dump_tensors(_state_of(model))
    file = file_of(ModelFile, data)
    text = _document(plan, source, inputs, file).model_dump_json(indent=1)
    target = Path(folder)
    has_earlier = (target / NAME).exists()
    earlier = read_document(target, _Document, _WHAT).tensors if has_earlier else None
    write_pair(make_folder(target), NAME, text, file.file, data)
    if earlier is not None and earlier.file != file.file:
        (target / earlier.file).unlink(missing_ok=True)


def save_shrunk_compact(
    model: nn.Module, plan: Plan, source: dict[str, list[int]], inputs: Any, path: str | Path
) -> None:
    """Write a shrunk model as one compact file, with the plan in it."""
    tensors = {name: Stored(*to_bits(tensor)) for name, tensor in _state_of(model).items()}
    note = _document(plan, source, inputs, None).model_dump_json(exclude={"tensors"})
    write_atomically(path, encode(without_negative_zeros(tensors), note))


def _state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model; refuse one under a compressor."""
    if any(isinstance(module, Sidecar) for module in model.modules()):
        raise StateError("the shrunk model is under a compressor again; strip() it before saving.")
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise StateError(f"{name!r} in the state dict is not a tensor; it cannot be saved.")
    return state


def _document(
    plan: Plan, source: dict[str, list[int]], inputs: Any, tensors: ModelFile | None
) -> _Document:
    """Return how a model was shrunk, as data."""
    return _Document(
        format=1,
        kind="shrunk model",
        source=source,
        cuts=[_Cut(tensor=c.tensor, dim=c.dim, keep=c.keep.tolist()) for c in plan.cuts],
        attributes=[
            _Attribute(
                module=path,
                name=name,
                value=list(value) if isinstance(value, tuple) else value,
                is_tuple=isinstance(value, tuple),
            )
            for (path, name), value in plan.attributes.items()
        ],
        graphs=list(plan.graphs),
        any_size=plan.any_size,
        inputs=_describe(inputs, is_needed=bool(plan.graphs)),
        tensors=tensors,
    )


def load(model: nn.Module, folder: str | Path) -> nn.Module:
    """Load the weights of a file, or shrink a model as the saved one was and load its weights.

    The model is changed in place and returned; one that was saved as a captured graph is returned as
    a new module. If anything does not fit, the model stays as it was.

    Parameters
    ----------
    model : torch.nn.Module
        A model of the same class and sizes as the one that was shrunk; its weights do not matter.
    folder : str or path
        What :meth:`SpeedupResult.save` wrote, or a file that :func:`save` wrote.

    Examples
    --------
    >>> import tempfile, torch
    >>> from lilliput.torch import L1NormPruner, speedup
    >>> make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    >>> model, x = make(), torch.randn(2, 4)
    >>> _ = L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     speedup(model, x).save(folder)
    ...     again = load(make(), folder)
    >>> torch.equal(again(x), model(x))
    True
    """
    target = Path(folder)
    found = _read_file(model, target) if target.is_file() else _read_folder(target)
    if found is None:
        return load_weights(model, target)  # type: ignore[no-any-return]
    document, weights = found
    if any(isinstance(module, Sidecar) for module in model.modules()):
        raise StateError("the model is under a compressor; strip() it before loading.")
    plain = plain_copy(model)
    compare_shapes(document.source, shapes_of(plain), target)
    check_cuts(document.cuts, document.source, target)
    check_attributes(document.attributes, model, target)
    plan = Plan(
        tuple(Cut(c.tensor, c.dim, np.asarray(c.keep, np.int64)) for c in document.cuts),
        {
            (a.module, a.name): tuple(a.value)
            if a.is_tuple and isinstance(a.value, list)
            else a.value
            for a in document.attributes
        },
        tuple(document.graphs),
        document.any_size,
    )
    inputs = None if document.inputs is None else _restore(document.inputs)
    try:
        trial = build(plain, plan, inputs)
        trial.load_state_dict(weights)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise StateError(f"{target}: the plan does not fit this model ({error}).") from error
    if plan.kind == "graph":
        return trial.train(model.training)
    check_layers(trial, target)
    if inputs is not None:
        check_run(plain, trial, inputs, target)
    build_in_place(model, plan, capture_parts(plain, plan, inputs))
    model.load_state_dict(weights)
    return model


def _read_folder(folder: Path) -> tuple[_Document, dict[str, Tensor]]:
    document = read_document(folder, _Document, _WHAT)
    file = document.tensors
    if file is None:
        raise StateError(f"{folder}: {NAME} does not name a file of tensors.")
    return document, parse_tensors(read_tensors(folder / file.file, file.sha256, "weights"))


def _read_file(model: nn.Module, path: Path) -> tuple[_Document, dict[str, Tensor]] | None:
    """Return the plan and the tensors of a compact file, None if it has no plan."""
    # A shrunk model is smaller than the one it is made from; a captured graph may hold some more.
    own = sum(tensor.nbytes for tensor in model.state_dict().values())
    if not has_plan(path):
        return None
    content = read_weights(path, limit=2 * own + _LARGEST)
    try:
        document = _Document.model_validate_json(content.note)
    except ValidationError as error:
        raise StateError(f"{path}: no readable {_WHAT} ({error}).") from error
    return document, {name: from_bits(x.dtype, x.bits) for name, x in content.tensors.items()}


def _describe(inputs: Any, is_needed: bool) -> JsonValue:
    """Return example inputs as data: shapes and types of tensors, anything else as it is."""
    args, kwargs = as_inputs(inputs)
    described: JsonValue = {
        "args": [_describe_one(x) for x in args],
        "kwargs": {name: _describe_one(x) for name, x in kwargs.items()},
    }
    try:
        json.dumps(described)
    except (TypeError, ValueError) as error:
        if not is_needed:
            return None
        raise StateError(
            f"a model that runs as a captured graph is saved with its example inputs, and these cannot "
            f"be written: {error}."
        ) from error
    return described


def _describe_one(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    return {"value": value}


def _restore(inputs: Any) -> Any:
    """Return inputs like those that were described; numbers in them do not matter."""
    try:
        args = tuple(_restore_one(x) for x in inputs["args"])
        kwargs = {name: _restore_one(x) for name, x in inputs["kwargs"].items()}
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise StateError(f"the saved example inputs are damaged ({error!r}).") from error
    return Call(args, kwargs)


def _restore_one(value: Any) -> Any:
    if "value" in value:
        return value["value"]
    dtype = getattr(torch, value["dtype"])
    if prod(value["shape"]) > _LARGEST:
        raise TypeError(f"a tensor of shape {value['shape']}")
    return torch.zeros(value["shape"], dtype=dtype)
