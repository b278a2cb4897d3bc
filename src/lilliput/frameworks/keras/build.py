"""Rebuild a Functional or Sequential model with fewer channels in its layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from types import CodeType
from typing import Any

import keras
import numpy as np
from keras import tree

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.configs import edited_config
from lilliput.frameworks.keras.copies import copy_operation, custom_objects
from lilliput.frameworks.keras.graph import function_of, ordered_nodes
from lilliput.frameworks.keras.lowering import find_lowering
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.tensors import unhidden
from lilliput.graph.analysis import Analysis, Kept
from lilliput.graph.cuts import Array, Cut, cut_array
from lilliput.graph.labels import Flags

# Attributes that Keras adds to a model after its constructor.
_OF_KERAS = (
    *("history", "optimizer", "output_names", "input_names"),
    *("stop_evaluating", "stop_predicting", "stop_training"),
)
_PLAIN = (bool, int, float, str, type(None))
_FRAMEWORKS = ("keras", "tensorflow", "torch", "jax")


class Builder:
    """A new model: its layers by the layers they were created from, and its weights.

    Parameters
    ----------
    analysis : Analysis
        The analysis of the model to rebuild.
    removed : array of bool
        The removed classes of its labels.
    cuts : iterable of Cut
        The resulting cuts of its variables.
    dtype : str, optional
        Compute in this precision instead of that of the layers.
    """

    def __init__(
        self, analysis: Analysis, removed: Flags, cuts: Iterable[Cut], dtype: str | None = None
    ) -> None:
        self.analysis, self.removed, self.dtype = analysis, removed, dtype
        self.read = analysis.graph.source
        self.cuts: dict[int, list[Cut]] = {}
        for cut in cuts:
            variable = self.read.tensors.variables[cut.tensor]
            self.cuts.setdefault(id(variable), []).append(cut)
        self.made: dict[int, tuple[Any, Any]] = {}  # by identity of the old one
        self.initializers: list[tuple[Any, dict[str, Any]]] = []  # restored in the end
        self.known = custom_objects(self.read.model)
        self.notes: list[str] = []

    def build(self, arrays: Mapping[int, Array]) -> Any:
        """Return the new model, always the same one, with these values of the old variables."""
        model = self.read.model
        if id(model) not in self.made:
            self._make(model)
        for old, copy in self.made.values():
            if function_of(old) is None and isinstance(old, keras.Layer):
                self._fill(old, copy, arrays)
        return self.made[id(model)][1]

    # -- models ------------------------------------------------------------------------------------

    def _make(self, model: Any) -> None:
        new = self._model(model, [tuple(x.shape) for x in function_of(model).inputs])
        self.made[id(model)] = (model, new)
        for old in [model, *model._flatten_layers(include_self=False)]:  # outer ones first
            if id(old) in self.made:
                self.made[id(old)][1].trainable = old.trainable
        for layer, initializers in self.initializers:
            for key, initializer in initializers.items():
                setattr(layer, key, initializer)

    def _model(self, model: Any, shapes: list[Any]) -> Any:
        function = function_of(model)
        inputs = [
            self._input(tensor, shape)
            for tensor, shape in zip(function.inputs, shapes, strict=True)
        ]
        if isinstance(model, keras.Sequential):
            layers = [self._operation(layer) for layer in model.layers]
            new = self._assemble(model, keras.Sequential, layers=[inputs[0], *layers])
        else:
            outputs = self._run(function, inputs)
            packed = tree.pack_sequence_as(function.input, inputs)
            results = tree.pack_sequence_as(function.output, outputs)
            new = self._assemble(model, keras.Model, inputs=packed, outputs=results)
        if self.dtype is None and new.dtype_policy.name != model.dtype_policy.name:
            new.dtype_policy = model.dtype_policy
        return new

    def _input(self, tensor: Any, shape: Any) -> Any:
        layer = tensor._keras_history.operation
        is_float = "float" in tensor.dtype
        dtype = self.dtype if self.dtype is not None and is_float else tensor.dtype
        optional = bool(getattr(layer, "optional", False))
        made = keras.Input(
            batch_shape=shape, dtype=dtype, sparse=tensor.sparse, name=layer.name, optional=optional
        )
        made.name = tensor.name  # otherwise Keras may name it differently from its layer
        return made

    def _run(self, function: Any, inputs: list[Any]) -> list[Any]:
        tensors = dict(zip(map(id, function.inputs), inputs, strict=True))
        for node in ordered_nodes(function):
            if node.is_input or any(id(x) not in tensors for x in node.input_tensors):
                continue
            args, kwargs = node.arguments.fill_in(tensors)
            outputs = tree.flatten(self._call(node.operation, args, kwargs))
            tensors.update(zip(map(id, node.outputs), outputs, strict=True))
        return [tensors[id(tensor)] for tensor in function.outputs]

    def _call(self, old: Any, args: Any, kwargs: Any) -> Any:
        new = self._operation(old)
        try:
            return new(*args, **kwargs)
        except (TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"{old.name!r} ({type(old).__name__}) does not run on fewer channels: {error}"
            ) from error

    def _assemble(self, model: Any, plain: Any, **parts: Any) -> Any:
        """Return a model of the given model's class, or of the plain class if its constructor differs."""
        own: Any = unshadowed(type(model))
        try:
            new = own(**parts, name=model.name)
        except TypeError:
            self.notes.append(
                f"{own.__name__} has its own constructor, so the new model is a plain "
                f"keras.{plain.__name__} without its training step and methods"
            )
            new = plain(**parts, name=model.name)
        self._carry(model, new)
        return new

    def _carry(self, model: Any, new: Any) -> None:
        """Copy the attributes that the class or the user has added to the old model."""
        known, lost = {*vars(keras.Sequential()), *_OF_KERAS}, []
        of_keras = _names_in_keras(model.__class__)
        modules = vars(model).get("_modules", {})  # where Keras on torch stores layers
        layers = {key: value for key, value in modules.items() if id(value) in self.made}
        for key, value in {**vars(model), **layers}.items():
            is_private = key.startswith("_") and key in of_keras
            if key in known or key.startswith("_lilliput") or (is_private and key not in vars(new)):
                continue
            if _is_plain(value):
                setattr(new, key, tree.map_structure(lambda x: x, value))
            elif id(value) in self.made:
                setattr(new, key, self.made[id(value)][1])
            elif not is_private and vars(new).get(key) is not value:
                lost.append(key)
        if lost:
            self.notes.append(
                f"{model.name!r} has attributes that are not plain values and were not copied: "
                f"{', '.join(lost)}; set them again"
            )

    # -- layers ------------------------------------------------------------------------------------

    def _operation(self, old: Any) -> Any:
        """Return the new form of a layer or operation, the same one for each of its calls."""
        if id(old) not in self.made:
            self.made[id(old)] = (old, self._copy(old))
        return self.made[id(old)][1]

    def _copy(self, old: Any) -> Any:
        if isinstance(old, keras.Model) and function_of(old) is not None:
            return self._model(old, self._inner_shapes(old))

        def edit(config: dict[str, Any]) -> dict[str, Any]:
            return edited_config(self.analysis, self.removed, old, config)

        new = copy_operation(old, edit, self.dtype, self.known)
        if isinstance(old, keras.Layer) and not old._layers:
            self._start_at_zero(new)  # inner layers create their own initializers from it
        return new

    def _start_at_zero(self, layer: Any) -> None:
        """Skip the random initialization of a layer, whose values are replaced immediately."""
        if find_lowering(layer) is not None:
            held = {k: v for k, v in vars(layer).items() if k.endswith("_initializer") and v}
            self.initializers.append((layer, held))
            for key in held:
                setattr(layer, key, _zeros)

    def _inner_shapes(self, model: Any) -> list[Any]:
        """Return the new input shapes of a nested model."""
        shapes = [tuple(tensor.shape) for tensor in function_of(model).inputs]
        call = next((x for x in self.read.calls.calls if x.operation is model), None)
        if call is None:
            return shapes
        kept, walk, read = Kept(self.analysis, self.removed), self.analysis.walk, self.read
        sizes = [kept.shape(walk.value(read.values[number])) for number in call.inputs]
        known = [read.calls.shapes[number] for number in call.inputs]
        return [
            tuple(
                n if n is None or was is None else size for n, was, size in zip(*three, strict=True)
            )
            for three in zip(shapes, known, sizes, strict=True)
        ]

    def _fill(self, old: Any, new: Any, arrays: Mapping[int, Array]) -> None:
        """Assign the kept values of the old layer to the new one."""
        ours, theirs = unhidden(old), unhidden(new)
        smaller = [cut_array(arrays[id(x)], self.cuts.get(id(x), ())) for x in ours]
        if [x.shape for x in smaller] != [tuple(x.shape) for x in theirs]:
            raise UnsupportedModelError(
                f"layer {old.name!r} ({type(old).__name__}) was recreated with variables of the shapes "
                f"{[tuple(x.shape) for x in theirs]}, expected {[x.shape for x in smaller]}"
            )
        for before, array, after in zip(ours, smaller, theirs, strict=True):
            after.assign(array)
            if after.trainable != before.trainable:
                after.trainable = before.trainable


def take_over(model: Any, new: Any) -> tuple[Any, Any]:
    """Turn a plain model into the new one of its class, in place; return it and its previous state.

    Keras stores everything of a model (layers, graph, compiled functions) in its attributes. A
    model of another class is not changed, and the new one is returned.
    """
    if type(new) is not type(model):
        return new, model
    held, made = dict(vars(model)), dict(vars(new))
    for each, attributes in ((model, made), (new, held)):
        vars(each).clear()
        vars(each).update(attributes)
    return model, new


@cache
def _names_in_keras(cls: Any) -> frozenset[str]:
    """Return all names used in the code of a model's classes, except those of the user."""
    frameworks = [x for x in cls.__mro__ if x.__module__.partition(".")[0] in _FRAMEWORKS]
    found: set[str] = set()
    parts: list[Any] = [x for base in frameworks for x in vars(base).values()]
    while parts:
        part = parts.pop()
        if isinstance(part, CodeType):
            found |= {*part.co_names, *(x for x in part.co_consts if isinstance(x, str))}
            parts += part.co_consts  # nested functions
        elif isinstance(part, property):
            parts += [part.fget, part.fset]
        elif callable(part) or isinstance(part, (classmethod, staticmethod)):
            parts.append(getattr(inspect.unwrap(part), "__code__", None))
    return frozenset(found)


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers and strings."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN) or (
        isinstance(value, (list, tuple)) and all(map(_is_plain, value))
    )


def _zeros(shape: Any, dtype: Any = None) -> Any:
    """Return zeros without a JAX compilation, if NumPy supports the type."""
    is_known = dtype is not None and "bfloat" not in str(dtype)
    return np.zeros(shape, str(dtype)) if is_known else keras.ops.zeros(shape, dtype)
