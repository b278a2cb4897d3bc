"""Outputs of layers in one call: of a student in training, and of its teacher on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import keras
from keras import ops, tree

from lilliput.config.layer import LayerInfo
from lilliput.errors import StageError, UnsupportedModelError
from lilliput.frameworks.features import MODEL, Run
from lilliput.frameworks.keras import model as models
from lilliput.frameworks.keras.copies import copy_model
from lilliput.frameworks.keras.discover import find_layers, layers_by_path
from lilliput.frameworks.keras.instrument import Collector
from lilliput.frameworks.keras.running import no_grad
from lilliput.frameworks.keras.scopes import is_tracing, sync
from lilliput.frameworks.keras.variables import to_array

Tensor = Any


def list_modules(model: Any) -> list[LayerInfo]:
    """Return the model and every layer in it, by path."""
    found = find_layers(model)
    return [replace(found[0], name=MODEL, types=found[0].types | {MODEL}), *found[1:]]


def frozen_copy(model: Any) -> Any:
    """Return a copy that is not trained; raise if compressors have changed the model."""
    at_work = [x for x in models.compressors_of(model) if x.kind != "distiller"]
    if at_work:
        raise StageError(
            f"teacher: the model is already under {type(at_work[0]).__name__}, so a copy of it is not the "
            "original. Create the distiller before attaching other compressors, or pass the "
            "original: Distiller(model, teacher=original)."
        )
    try:
        teacher = copy_model(model)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"teacher: {error}; pass a teacher to the distiller."
        ) from error
    teacher.trainable = False
    return teacher


def shared_with(teacher: Any, model: Any) -> str | None:
    """Return the first variable or layer of a model that its teacher has, too; inputs may be shared."""
    held = {id(part) for _, part in _named_parts(teacher)}
    return next((name for name, part in _named_parts(model) if id(part) in held), None)


def _named_parts(model: Any) -> Iterator[tuple[str, Any]]:
    yield from ((str(variable.path), variable) for variable in model.variables)
    yield from ((layer.name or MODEL, layer.module) for layer in find_layers(model))


class Recorder:
    """Records the outputs of chosen layers while the whole model is called in training."""

    def __init__(self, model: Any, wrappers: Sequence[Any], task: Callable[[Run], None]) -> None:
        self.model, self.wrappers, self.task = model, list(wrappers), task
        self.run: Run | None = None
        models.enter(model, wrappers[0].compressor)
        models.state_of(model).recorders.append(self)
        layers = layers_by_path(model)
        self.collectors = [
            Collector(wrapper, self._add).add_to(layers[wrapper.name])
            for wrapper in wrappers
            if wrapper.name != MODEL
        ]
        for wrapper in wrappers:
            wrapper.hold_variables(True)

    def remove(self) -> None:
        """Stop recording."""
        sync(self.model)
        for collector in self.collectors:
            collector.remove()
        for wrapper in self.wrappers:
            wrapper.hold_variables(False)
        recorders = models.state_of(self.model).recorders
        if self in recorders:
            recorders.remove(self)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start recording a run, if it is in training mode."""
        self.run = None
        if kwargs.get("training"):
            # While a graph is traced, the loss of the last run cannot be discarded, so it may be
            # replaced.
            is_traced = is_tracing()
            self.run = Run(args, kwargs, is_training=not is_traced, may_replace=is_traced)

    def _add(self, wrapper: Any, args: Any, output: Any) -> None:
        if self.run is not None:
            self.run.outputs.setdefault(wrapper.name, []).append(output)

    def end(self, output: Any) -> None:
        """Pass on the completed run."""
        run, self.run = self.run, None
        if run is not None:
            # The caller may replace parts of a dict.
            run.result = tree.map_structure(lambda part: part, output)
            self.task(run)


class _Named:
    """The part of a layer's interface that a collector uses."""

    def __init__(self, name: str) -> None:
        self.name = name


def outputs_of(
    model: Any, names: Sequence[str], run: Run, forward: Any = None
) -> dict[str, list[Any]]:
    """Call a model for inference, without gradients, and return the outputs of layers."""
    found: dict[str, list[Any]] = {}

    def keep(named: Any, inputs: Any, output: Any) -> None:
        found.setdefault(named.name, []).append(tree.map_structure(ops.stop_gradient, output))

    given = {
        key: value for key, value in run.kwargs.items() if key != "training" and value is not None
    }
    with ExitStack() as stack:
        stack.enter_context(no_grad())
        layers = layers_by_path(model) if set(names) - {MODEL} else {}
        for name in set(names) - {MODEL}:
            stack.callback(Collector(_Named(name), keep).add_to(layers[name]).remove)
        result = model(*run.args, training=False, **given) if forward is None else forward(model)
        keep(_Named(MODEL), run.args, result)
    return found


def channel_axis(model: Any, layer: Any, rank: int) -> int | None:
    """Return the axis of channels of a layer's output with ``rank`` axes; None if it is ambiguous."""
    if isinstance(layer, keras.layers.BatchNormalization):
        return int(layer.axis) % rank
    if isinstance(layer, (keras.layers.Dense, keras.layers.Embedding)):
        return rank - 1
    for part in (layer, model):
        layers = [part, *(found.module for found in find_layers(part))]
        formats = {getattr(x, "data_format", None) for x in layers} - {None}
        if formats:
            axis = 1 if "channels_first" in formats else rank - 1
            return axis if len(formats) == 1 else None
    return rank - 1


def are_shares(tensor: Tensor, axis: int) -> bool:
    """Whether values are at least 0 and add up to 1; False in a graph, where they are unknown."""
    if is_tracing():
        return False
    values = to_array(tensor)
    return bool((values >= 0).all() and (abs(values.sum(axis) - 1) < 1e-2).all())


def ends_in_softmax(layer: Any) -> bool:
    """Whether the output of a layer, or a Functional model, is known to come from a softmax."""
    makers = [layer]
    if isinstance(layer, keras.Model):
        outputs = tree.flatten(getattr(layer, "outputs", None) or [])
        makers = [x._keras_history.operation for x in outputs if hasattr(x, "_keras_history")]
    return any(
        isinstance(maker, keras.layers.Softmax)
        or getattr(maker, "activation", None) is keras.activations.softmax
        for maker in makers
    )
