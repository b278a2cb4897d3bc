"""A shrunk model as a folder: safetensors, and the plan that shrinks the original class again."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import JsonValue, ValidationError

from lilliput.compact.format import encode
from lilliput.compact.saving import (
    has_plan,
    parse_safetensors,
    read_weights,
    to_safetensors,
    without_negative_zeros,
)
from lilliput.compact.saving import load as load_weights
from lilliput.compact.tensors import DTYPES
from lilliput.errors import StateError
from lilliput.files import make_folder, write_atomically
from lilliput.frameworks import backend_of, part_for
from lilliput.frameworks.shrinking import Replay
from lilliput.graph.cuts import Cut
from lilliput.graph.plan import Plan
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
    tensors: ModelFile | None = None  # None in a compact file, which contains them


def save_shrunk(
    model: Any, plan: Plan, source: dict[str, list[int]], inputs: Any, folder: str | Path
) -> int:
    """Write a shrunk model, and return its bytes.

    The JSON is written last, so a crash leaves the old folder or the new one.
    """
    part: Replay = part_for(model, "replay")
    data = backend_of(model).dump_tensors(part.saved_tensors(model))
    file = file_of(ModelFile, data)
    text = _document(model, plan, source, inputs, file).model_dump_json(indent=1)
    target = Path(folder)
    has_earlier = (target / NAME).exists()
    earlier = read_document(target, _Document, _WHAT).tensors if has_earlier else None
    write_pair(make_folder(target), NAME, text, file.file, data)
    if earlier is not None and earlier.file != file.file:
        (target / earlier.file).unlink(missing_ok=True)
    return len(data) + (target / NAME).stat().st_size


def save_shrunk_compact(
    model: Any, plan: Plan, source: dict[str, list[int]], inputs: Any, path: str | Path
) -> int:
    """Write a shrunk model as one compact file, with the plan in it, and return its bytes."""
    part: Replay = part_for(model, "replay")
    data = backend_of(model).dump_tensors(part.saved_tensors(model))
    note = _document(model, plan, source, inputs, None).model_dump_json(exclude={"tensors"})
    coded = encode(without_negative_zeros(parse_safetensors(data)), note)
    write_atomically(path, coded)
    return len(coded)


def _document(
    model: Any, plan: Plan, source: dict[str, list[int]], inputs: Any, tensors: ModelFile | None
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
        inputs=_describe(model, inputs, is_needed=bool(plan.graphs)),
        tensors=tensors,
    )


def load(model: Any, folder: str | Path) -> Any:
    """Load the weights of a file, or shrink a model like the saved one and load its weights.

    The model is changed in place and returned, as by :func:`speedup`; one that was saved as a captured
    graph is returned as a new module. If anything does not fit, the model is not changed.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        A model of the same class and sizes as the one that was shrunk; its weights do not matter.
    folder : str or path
        Written by :meth:`SpeedupResult.save`, or a file written by :func:`save`.

    Examples
    --------
    >>> import tempfile, torch
    >>> from lilliput.torch import L1NormPruner, speedup
    >>> make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    >>> model, x = make(), torch.randn(2, 4)
    >>> _ = L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = speedup(model, x).save(folder)
    ...     again = load(make(), folder)
    >>> torch.equal(again(x), model(x))
    True
    """
    target = Path(folder)
    found = _read_file(model, target) if target.is_file() else _read_folder(model, target)
    if found is None:
        return load_weights(model, target)
    document, tensors = found
    part: Replay = part_for(model, "replay")
    inputs = None if document.inputs is None else _restore(model, document.inputs)
    plan = _read_plan(document, target)
    return part.replay(model, plan, document.source, tensors, inputs, target)


def _read_plan(document: _Document, folder: Path) -> Plan:
    try:
        cuts = tuple(Cut(c.tensor, c.dim, np.asarray(c.keep, np.int64)) for c in document.cuts)
    except (OverflowError, ValueError) as error:
        raise StateError(f"{folder}: the plan does not fit this model ({error}).") from error
    attributes = {
        (a.module, a.name): tuple(a.value) if a.is_tuple and isinstance(a.value, list) else a.value
        for a in document.attributes
    }
    return Plan(cuts, attributes, tuple(document.graphs), document.any_size)


def _read_folder(model: Any, folder: Path) -> tuple[_Document, dict[str, Any]]:
    document = read_document(folder, _Document, _WHAT)
    file = document.tensors
    if file is None:
        raise StateError(f"{folder}: {NAME} does not name a file of tensors.")
    data = read_tensors(folder / file.file, file.sha256, "weights")
    return document, backend_of(model).parse_tensors(data)


def _read_file(model: Any, path: Path) -> tuple[_Document, dict[str, Any]] | None:
    """Return the plan and the tensors of a compact file, or None if it has no plan."""
    # A shrunk model is smaller than its original; a captured graph may have a few more tensors.
    if not has_plan(path):
        return None
    backend = backend_of(model)
    types = backend.stored_types(model).values()
    own = sum(prod(shape) * DTYPES[dtype][0] for dtype, shape in types)
    content = read_weights(path, limit=2 * own + _LARGEST)
    try:
        document = _Document.model_validate_json(content.note)
    except ValidationError as error:
        raise StateError(f"{path}: no readable {_WHAT} ({error}).") from error
    return document, backend.parse_tensors(to_safetensors(content.tensors))


def _describe(model: Any, inputs: Any, is_needed: bool) -> JsonValue:
    """Return example inputs as data: shapes and types of tensors, other values unchanged."""
    if inputs is None:
        return None
    part: Replay = part_for(model, "replay")
    args, kwargs = part.as_arguments(inputs)
    described: JsonValue = {
        "args": [_describe_one(x, part) for x in args],
        "kwargs": {name: _describe_one(x, part) for name, x in kwargs.items()},
    }
    try:
        json.dumps(described)
    except (TypeError, ValueError) as error:
        if not is_needed:
            return None
        raise StateError(
            "a model that runs as a captured graph is saved with its example inputs, which cannot be "
            f"written: {error}."
        ) from error
    return described


def _describe_one(value: Any, part: Replay) -> Any:
    if part.is_tensor(value):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, list) and any(part.is_tensor(x) for x in value):
        return {"list": [_describe_one(x, part) for x in value]}
    if isinstance(value, dict) and any(part.is_tensor(x) for x in value.values()):
        return {"dict": {key: _describe_one(x, part) for key, x in value.items()}}
    return {"value": value}


def _restore(model: Any, inputs: Any) -> Any:
    """Return inputs like those that were described, with arbitrary numbers."""
    part: Replay = part_for(model, "replay")
    try:
        args = tuple(_restore_one(x, part) for x in inputs["args"])
        kwargs = {name: _restore_one(x, part) for name, x in inputs["kwargs"].items()}
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise StateError(f"the saved example inputs are damaged ({error!r}).") from error
    return part.as_call(args, kwargs)


def _restore_one(value: Any, part: Replay) -> Any:
    if "value" in value:
        return value["value"]
    if "list" in value:
        return [_restore_one(x, part) for x in value["list"]]
    if "dict" in value:
        return {key: _restore_one(x, part) for key, x in value["dict"].items()}
    if prod(value["shape"]) > _LARGEST:
        raise TypeError(f"a tensor of shape {value['shape']}")
    return part.zeros_like(value["shape"], value["dtype"])
