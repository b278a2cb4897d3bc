"""The lab for Keras, on any of its backends: how the checks create, train and read models."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from lilliput.frameworks.keras.discover import DEFAULT_TYPES as DEFAULT_TYPES
from lilliput.frameworks.keras.discover import discover
from lilliput.frameworks.keras.lab_loops import compare as compare
from lilliput.frameworks.keras.lab_loops import gradients as gradients
from lilliput.frameworks.keras.lab_models import SPECIMENS as SPECIMENS
from lilliput.frameworks.keras.lab_models import make_batch, make_input, specimen_of
from lilliput.frameworks.keras.variables import raw as raw
from lilliput.frameworks.keras.variables import read as tensor_in
from lilliput.frameworks.keras.variables import to_array

if TYPE_CHECKING:
    from lilliput.core.compressor import Compressor

Array = Any

# A step takes ten milliseconds or more, so not every check runs on every model.
LAYER_KINDS: tuple[str, ...] = ("cnn", "recurrent", "attention")
FEW: tuple[str, ...] = ("mlp",)
STEPS: int = 1
SIMPLE_TYPES: tuple[str, ...] = ("Conv2D", "Dense")

# Keras's information on a layer's call, which is larger for a model under compression.
_CALL = ("_call_has_training_arg", "_call_has_context_arg", "_call_context_args", "_call_signature")


@contextmanager
def isolated() -> Iterator[None]:
    """Restore the generators of Python and NumPy; that of Keras is reset to zero."""
    before, before_numpy = random.getstate(), np.random.get_state()
    try:
        with _one_thread():
            yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread on torch: the fastest for models this small."""
    if keras.backend.backend() != "torch":
        yield
        return
    torch = sys.modules["torch"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def set_seed(seed: int) -> None:
    """Seed all generators that an algorithm is likely to use."""
    keras.utils.set_random_seed(seed)


def backend_name() -> str:
    """Return the name of Keras's backend."""
    return str(keras.backend.backend())


@contextmanager
def policy(name: str) -> Iterator[None]:
    """Create models of another precision in this context."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def load(path: Path) -> Any:
    """Load a model from its file."""
    return keras.models.load_model(path)


@cache
def types_in(kind: str) -> frozenset[str]:
    """Return the types of the layers of a kind of model."""
    return frozenset(name for layer in discover(SPECIMENS[kind]()) for name in layer.types)


def like(model: Any) -> Any:
    """Return a fresh plain model of the same kind, under the same policy."""
    return specimen_of(model)()


def outputs(model: Any, training: bool = False, inputs: Array = None) -> Array:
    """Return the output of a model, by default for its own test batch."""
    inputs = make_input(model) if inputs is None else inputs
    return read(model(inputs, training=training))


def predictions(model: Any) -> Array:
    """Return the predictions of a model's compiled function."""
    return read(model.predict_on_batch(make_input(model)))


def batch(model: Any) -> Array:
    """Return the input of a model."""
    return make_input(model)


def run_layer(layer: Any, inputs: tuple[Any, ...]) -> Array:
    """Return the output of one layer."""
    return read(layer(*inputs))


def parts(model: Any, optimizer: Any = None) -> tuple[dict[str, Any], ...]:
    """Return the layers and variables of a model, and the state of its optimizer."""
    things: dict[str, Any] = {"the weights": list(model.weights)}
    facts: dict[str, Any] = {"the number of weights": len(model.get_weights())}
    if keras.backend.backend() == "torch":
        facts["the state-dict keys"] = list(model.state_dict())
        things["the parameters"] = list(model.parameters())
    for number, layer in enumerate(model._flatten_layers()):
        label = f"layer {number} {layer.name!r}"
        things[label] = layer
        facts[f"the class of {label}"] = type(layer)
        facts[f"the attributes of {label}"] = sorted(vars(layer))
        facts[f"the lock of {label}"] = layer._tracker.locked
        for kind in ("_trainable_variables", "_non_trainable_variables"):
            things[f"{kind} of {label}"] = list(getattr(layer, kind))
        for name in _CALL:
            facts[f"{name} of {label}"] = getattr(layer, name, None)
    if optimizer is not None:
        facts["the class of the optimizer"] = type(optimizer)
        facts["the attributes of the optimizer"] = sorted(vars(optimizer))
        things["the variables of the optimizer"] = list(optimizer.variables)
    return things, facts


def holds(model: Any, tensor: Any) -> bool:
    """Whether a tensor is that of an untrained variable of the model."""
    return any(tensor_in(variable) is tensor for variable in model.non_trainable_variables)


def weights(model: Any) -> dict[str, Any]:
    """Return the variables of a model by their paths."""
    return {variable.path: variable for variable in model.weights}


def read(tensor: Any) -> Array:
    """Return a copy of a variable or tensor."""
    return to_array(tensor)


def write(weight: Any, value: Array) -> None:
    """Overwrite a variable."""
    weight.assign(value)


def tensor(value: Array) -> Array:
    """Return an array, which a wrapper accepts unchanged."""
    return value


def describe(tensor: Any) -> tuple[Any, ...]:
    """Return shape and name of the dtype, the same on every backend."""
    return tuple(tensor.shape), str(keras.backend.standardize_dtype(tensor.dtype))


def sgd(weight_decay: float | None = None) -> Any:
    """Return an optimizer with momentum; steps are small enough for one-bit networks."""
    return keras.optimizers.SGD(0.05, 0.9, weight_decay=weight_decay, global_clipnorm=1.0)


def adamw() -> Any:
    """Return an optimizer with two moments of each weight."""
    return keras.optimizers.AdamW(0.01, weight_decay=0.05)


_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: sgd(weight_decay=0.01),
    "momentum": sgd,
    "adamw": adamw,
}


def compiled(model: Any, optimizer: Any = None, **options: Any) -> Any:
    """Compile a model for step-by-step training without graphs, and return its optimizer.

    Most checks run without graphs: tracing one takes as long as a hundred steps of models this small.
    """
    options = {"run_eagerly": True, "jit_compile": False} | options
    model.compile(sgd() if optimizer is None else optimizer, "mse", **options)
    return model.optimizer


def optimizer(model: Any, name: str = "sgd") -> Any:
    """Compile a model for training without graphs, and return its optimizer."""
    return compiled(model, _OPTIMIZERS[name]())


def train(model: Any, optimizer: Any, steps: int, compressor: Compressor | None = None) -> None:
    """Train for some steps; call ``step()`` by hand for a compressor without an optimizer.

    The loss of a distiller is part of the model's loss.
    """
    data = make_batch(model)
    for _ in range(steps):
        model.train_on_batch(*data)
        if compressor is not None and compressor.optimizer is None:
            compressor.step()


def use(model: Any, optimizer: Any, compressor: Compressor | None = None) -> Array:
    """Train a model, evaluate it and predict with it; return the predictions."""
    train(model, optimizer, 1, compressor)
    model.test_on_batch(*make_batch(model))
    return predictions(model)


def fit(model: Any, epochs: int = 1, callbacks: Any = None) -> None:
    """Train with ``fit``, two steps per epoch."""
    options = {"batch_size": 2, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(*make_batch(model), callbacks=callbacks, **options)


def ways_to_run(model: Any, optimizer: Any) -> list[tuple[bool, Callable[[], Any]]]:
    """Return ways to run a model, each with whether it is training."""
    return [
        (False, lambda: outputs(model)),
        (True, lambda: train(model, optimizer, 1)),
        (False, lambda: model.test_on_batch(*make_batch(model))),
        (False, lambda: predictions(model)),
    ]


def held(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer updates."""
    return list(optimizer._trainable_variables)


def learned(wrapper: Any) -> dict[str, Any]:
    """Return the trained variables of a wrapper."""
    return {variable.path: variable for variable in wrapper.variables() if variable.trainable}


def load_plain(model: Any, plain: Any, folder: Path) -> None:
    """Load a file of the plain model's weights."""
    plain.save_weights(folder / "plain.weights.h5")
    model.load_weights(folder / "plain.weights.h5")


def resume(
    model: Any, optimizer: Any, compress: Callable[[Any, Any], Compressor], folder: Path
) -> tuple[Any, Any, Compressor]:
    """Save the model, as a plain file, and compress the model loaded from it."""
    model.save(folder / "model.keras")
    other = keras.models.load_model(folder / "model.keras")
    return other, other.optimizer, compress(other, other.optimizer)
