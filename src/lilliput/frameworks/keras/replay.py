"""Save shrunk Keras models as named tensors, and shrink a model of the original class by a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.errors import LilliputError, StateError
from lilliput.frameworks.keras.build import Builder, take_over
from lilliput.frameworks.keras.model import compressors_of
from lilliput.frameworks.keras.reader import graph_of
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.tensors import Tensors, shapes_of, unhidden
from lilliput.frameworks.keras.variables import to_array
from lilliput.frameworks.shrinking import Shapes, check_cuts, compare_shapes, compare_types
from lilliput.graph.collect import find_groups
from lilliput.graph.cuts import find_cuts
from lilliput.graph.plan import Plan
from lilliput.graph.removal import removal_of


def saved_tensors(model: Any) -> dict[str, Any]:
    """Return the variables of a plain model by name, including those of random layers."""
    if compressors_of(model):
        raise StateError(
            "a compressor is attached to the shrunk model; call its strip() before saving."
        )
    sync(model)
    return {name: variable.value for name, variable in _variables(model).items()}


def _variables(model: Any) -> dict[str, Any]:
    tensors = Tensors(model)
    others = [x for x in unhidden(model) if id(x) not in tensors.names]
    return {**tensors.variables, **{f"{i} {x.name}": x for i, x in enumerate(others)}}


def is_tensor(value: Any) -> bool:
    """Whether a value is an array."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def zeros_like(shape: list[int], dtype: str) -> Any:
    """Return an array of zeros."""
    return np.zeros(shape, dtype)


def as_arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as a single argument."""
    if isinstance(example_inputs, tuple):
        example_inputs = example_inputs[0] if len(example_inputs) == 1 else list(example_inputs)
    return (example_inputs,), {}


def as_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return that argument."""
    return args[0]


def replay(model: Any, plan: Plan, source: Shapes, tensors: Any, inputs: Any, folder: Path) -> Any:
    """Shrink a model in place by a plan and load its variables."""
    if compressors_of(model):
        raise StateError("a compressor is attached to the model; call its strip() before loading.")
    names = _new_names(source, shapes_of(Tensors(model)))
    source = {names.get(name, name): shape for name, shape in source.items()}
    tensors = {names.get(name, name): array for name, array in tensors.items()}
    plan = replace(
        plan, cuts=tuple(replace(c, tensor=names.get(c.tensor, c.tensor)) for c in plan.cuts)
    )
    compare_shapes(source, shapes_of(Tensors(model)), folder)
    check_cuts(plan, source, folder)
    if plan.attributes or plan.graphs:
        raise StateError(
            f"{folder}: the plan does not fit this model: it was created for a torch module."
        )
    try:
        new = _rebuild(model, plan, inputs)
    except LilliputError as error:
        raise StateError(f"{folder}: the plan does not fit this model ({error}).") from error
    here = _variables(new)
    compare_shapes(
        {name: list(x.shape) for name, x in tensors.items()},
        {name: [int(n) for n in x.shape] for name, x in here.items()},
        folder,
    )
    saved = {name: _type_of(array, here[name]) for name, array in tensors.items()}
    compare_types(saved, {name: _type_of(to_array(x), x) for name, x in here.items()}, folder)
    for name, variable in here.items():
        variable.assign(tensors[name])
    return take_over(model, new)[0]


def _type_of(array: Any, variable: Any) -> str:
    """Return the type of a saved array; bfloat16 is saved as float32 with 16 zero bits."""
    if str(array.dtype) == "float32" and str(variable.dtype) == "bfloat16":
        is_exact = not (array.view(np.uint32) & 0xFFFF).any()
        return "bfloat16" if is_exact else "float32"
    return str(array.dtype)


def _new_names(saved: Shapes, here: Shapes) -> dict[str, str]:
    """Return the current names of saved variables: Keras numbers unnamed layers differently each time.

    Variables are matched in order, which depends on the code that created the model, if all
    attributes and shapes agree.
    """
    pairs = list(zip(saved.items(), here.items(), strict=False))
    is_same = len(saved) == len(here) and all(
        shape == found and name.rpartition(".")[2] == other.rpartition(".")[2]
        for (name, shape), (other, found) in pairs
    )
    return {name: other for (name, _), (other, _) in pairs} if is_same else {}


def _rebuild(model: Any, plan: Plan, inputs: Any) -> Any:
    analysis = find_groups(graph_of(model, inputs)).analysis
    removed = removal_of(analysis, plan.cuts)
    cuts = find_cuts(analysis, removed)
    if _as_data(cuts) != _as_data(plan.cuts):
        raise StateError("its cuts do not remove whole channels")
    tensors: Tensors = analysis.graph.source.tensors
    return Builder(analysis, removed, cuts).build(tensors.arrays({}))


def _as_data(cuts: Any) -> dict[tuple[str, int], list[Any]]:
    return {(cut.tensor, cut.dim): cut.keep.tolist() for cut in cuts}
