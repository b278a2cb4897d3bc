"""Build a Functional or Sequential model again, with fewer channels in its layers."""

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
from lilliput.frameworks.keras.instrument import unshadowed
from lilliput.frameworks.keras.lowering import find_lowering
from lilliput.frameworks.keras.tensors import unhidden
from lilliput.graph.analysis import Analysis, Kept
from lilliput.graph.cuts import Array, Cut, cut_array
from lilliput.graph.labels import Flags

# What Keras adds to a model later than in its constructor.
_OF_KERAS = (
    *("history", "optimizer", "output_names", "input_names"),
    *("stop_evaluating", "stop_predicting", "stop_training"),
)
_PLAIN = (bool, int, float, str, type(None))
_FRAMEWORKS = ("keras", "tensorflow", "torch", "jax")


class Builder:
    """One new model: its layers by those they were made from, and its weights.

    Parameters
    ----------
    analysis : Analysis
        The model to build again.
    removed : array of bool
        Which classes of its labels go.
    cuts : iterable of Cut
        What this takes from its variables.
    dtype : str, optional
        Compute in this precision instead of the layers' own.
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
        self.initializers: list[tuple[Any, dict[str, Any]]] = []  # to put back when all is built
        self.known = custom_objects(self.read.model)
        self.notes: list[str] = []

    def build(self, arrays: Mapping[int, Array]) -> Any:
        """Return the new model, the same one each time, with these values of the old variables."""
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
        for old in [model, *model._flatten_layers(include_self=False)]:  # outer ones come first
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
        made.name = tensor.name  # without a name of the user's, Keras calls it other than its layer
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
        """Return a model of the class of another; of the plain one if that is made differently."""
        own: Any = unshadowed(type(model))
        try:
            new = own(**parts, name=model.name)
        except TypeError:
            self.notes.append(
                f"{own.__name__} has a constructor of its own, so the new model is a plain "
                f"keras.{plain.__name__}: its training step and methods are gone"
            )
            new = plain(**parts, name=model.name)
        self._carry(model, new)
        return new

    def _carry(self, model: Any, new: Any) -> None:
        """Give a new model the attributes that its class or its user has given the old one."""
        known, lost = {*vars(keras.Sequential()), *_OF_KERAS}, []
        of_keras = _names_in_keras(model.__class__)
        modules = vars(model).get("_modules", {})  # where Keras on torch has layers
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
                f"{model.name!r} has attributes that are not plain values, and were not carried over: "
                f"{', '.join(lost)}; set them again"
            )

    # -- layers ------------------------------------------------------------------------------------

    def _operation(self, old: Any) -> Any:
        """Return the new form of a layer or operation; the same one for each of its calls."""
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
            self._start_at_zero(new)  # layers inside make initializers of their own from it
        return new

    def _start_at_zero(self, layer: Any) -> None:
        """Spare a layer random numbers, which its own values replace at once."""
        if find_lowering(layer) is not None:
            held = {k: v for k, v in vars(layer).items() if k.endswith("_initializer") and v}
            self.initializers.append((layer, held))
            for key in held:
                setattr(layer, key, _zeros)

    def _inner_shapes(self, model: Any) -> list[Any]:
        """Return the shapes that a nested model is called with from now on."""
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
        """Give a new layer the values of the old one, as far as they stay."""
        ours, theirs = unhidden(old), unhidden(new)
        smaller = [cut_array(arrays[id(x)], self.cuts.get(id(x), ())) for x in ours]
        if [x.shape for x in smaller] != [tuple(x.shape) for x in theirs]:
            raise UnsupportedModelError(
                f"layer {old.name!r} ({type(old).__name__}) made again has variables of the shapes "
                f"{[tuple(x.shape) for x in theirs]}, expected {[x.shape for x in smaller]}"
            )
        for before, array, after in zip(ours, smaller, theirs, strict=True):
            after.assign(array)
            if after.trainable != before.trainable:
                after.trainable = before.trainable


def take_over(model: Any, new: Any) -> tuple[Any, Any]:
    """Have a plain model become a new one of its class; return it, and what it was.

    Everything that Keras keeps of a model (layers, graph, compiled functions) is in its attributes. A
    model of another class is left alone, and the new one is returned.
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
    """Return all names that the code of a model's classes mentions, as far as they are not the user's."""
    frameworks = [x for x in cls.__mro__ if x.__module__.partition(".")[0] in _FRAMEWORKS]
    found: set[str] = set()
    parts: list[Any] = [x for base in frameworks for x in vars(base).values()]
    while parts:
        part = parts.pop()
        if isinstance(part, CodeType):
            found |= {*part.co_names, *(x for x in part.co_consts if isinstance(x, str))}
            parts += part.co_consts  # functions within
        elif isinstance(part, property):
            parts += [part.fget, part.fset]
        elif callable(part) or isinstance(part, (classmethod, staticmethod)):
            parts.append(getattr(inspect.unwrap(part), "__code__", None))
    return frozenset(found)


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, or made of such."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN) or (
        isinstance(value, (list, tuple)) and all(map(_is_plain, value))
    )


def _zeros(shape: Any, dtype: Any = None) -> Any:
    """Return zeros without having JAX compile anything for it, where NumPy knows the type."""
    is_known = dtype is not None and "bfloat" not in str(dtype)
    return np.zeros(shape, str(dtype)) if is_known else keras.ops.zeros(shape, dtype)
