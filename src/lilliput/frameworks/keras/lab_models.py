"""Tiny Keras models, one for each way to build a model or to store a layer's weight.

Each is small enough to compress dozens of times in a test, and odd enough (sizes that no sparsity divides
evenly) to reveal off-by-one errors. All return five numbers per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

from lilliput.errors import ConfigError

Array = Any


@dataclass(frozen=True)
class Specimen:
    """A kind of model that knows its inputs. Calling it returns a fresh model of that kind.

    Parameters
    ----------
    name : str
        The name of its models.
    build : callable
        ``build(name)`` returns a model.
    shape : tuple of int
        The shape of a sample.
    words : int, optional
        The vocabulary size, for a text model.

    Examples
    --------
    >>> model = TinyMLP()
    >>> tuple(model(TinyMLP.make_input(batch=3)).shape)
    (3, 5)
    """

    name: str
    build: Callable[[str], Any]
    shape: tuple[int, ...]
    words: int | None = None

    def __call__(self) -> Any:
        """Return a fresh model that is built but not compiled."""
        return self.build(self.name)

    def make_input(self, batch: int = 4) -> Array:
        """Return a batch that is the same each time."""
        random = np.random.RandomState(7)
        if self.words is not None:
            return random.randint(self.words, size=(batch, *self.shape)).astype("int32")
        return random.standard_normal((batch, *self.shape)).astype("float32")


def specimen_of(model: Any) -> Specimen:
    """Return the kind of a test model, by its name.

    Examples
    --------
    >>> specimen_of(TinyCNN()) is TinyCNN
    True
    """
    found = next((kind for kind in SPECIMENS.values() if kind.name == model.name), None)
    if found is None:
        raise ConfigError(f"model: received {model.name!r}, which is not one of the test models.")
    return found


def make_input(model: Any, batch: int = 4) -> Array:
    """Return a batch for a test model, the same each time."""
    return specimen_of(model).make_input(batch)


def make_batch(model: Any, batch: int = 4) -> tuple[Array, Array]:
    """Return a batch for a test model, and fixed target outputs."""
    target = np.sin(np.arange(batch * 5, dtype="float32")).reshape(batch, 5)
    return make_input(model, batch), target


def _mlp(name: str) -> Any:
    return keras.Sequential(
        [
            keras.Input((11,)),
            layers.Dense(13, activation="relu", name="hidden"),
            layers.Dense(5, use_bias=False, name="out"),
        ],
        name=name,
    )


def _cnn(name: str) -> Any:
    inputs = keras.Input((6, 6, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv1")(inputs)
    skip = layers.ReLU(name="act1")(layers.BatchNormalization(name="bn1")(x))
    x = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(skip)
    x = layers.Add(name="add")([skip, layers.BatchNormalization(name="bn2")(x)])
    x = layers.Conv2D(10, 3, strides=2, padding="same", activation="relu", name="conv2")(x)
    x = layers.Dense(5, name="fc")(layers.Flatten(name="flatten")(x))
    return keras.Model(inputs, x, name=name)


def _nested(name: str) -> Any:
    inputs = keras.Input((9,))
    x = layers.Dense(9, activation="tanh", name="first")(inputs)
    block = keras.Model(inputs, layers.Dense(9, name="second")(x), name="block")
    inputs = keras.Input((9,))
    tail = [keras.Input((9,)), layers.LayerNormalization(name="norm"), layers.Dense(5, name="fc")]
    x = block(keras.ops.relu(block(inputs)))
    return keras.Model(inputs, keras.Sequential(tail, name="tail")(x), name=name)


def _lstm(name: str) -> Any:
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(19, 7, name="embed"),
            layers.LSTM(9, name="lstm"),
            layers.Dense(5, name="head"),
        ],
        name=name,
    )


def _attention(name: str) -> Any:
    inputs = keras.Input((3, 10))
    x = layers.MultiHeadAttention(2, 5, name="attention")(inputs, inputs)
    x = layers.LayerNormalization(name="norm")(x + inputs)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(5, name="head")(x), name=name)


@keras.saving.register_keras_serializable("lilliput_testing")
class Subclassed(keras.Model):  # type: ignore[misc]
    """A subclassed model with a ``training`` argument, which it passes to its batch norm."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = layers.Dense(11, name="first")
        self.norm = layers.BatchNormalization(name="norm")
        self.last = layers.Dense(5, name="last")

    def call(self, x: Any, training: bool = False) -> Any:
        """Return five numbers per sample."""
        return self.last(keras.ops.relu(self.norm(self.first(x), training=training)))


@keras.saving.register_keras_serializable("lilliput_testing")
class Untold(keras.Model):  # type: ignore[misc]
    """A subclassed model whose ``call`` takes only the inputs, so that Keras does not pass ``training``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden = [layers.Dense(size, name=f"dense{size}") for size in (11, 8)]
        self.last = layers.Dense(5, name="last")

    def call(self, x: Any) -> Any:
        """Return five numbers per sample."""
        for layer in self.hidden:
            x = keras.ops.relu(layer(x))
        return self.last(x)


def _in_code(cls: Any) -> Callable[[str], Any]:
    def build(name: str) -> Any:
        model = cls(name=name)
        model(np.zeros((1, 7), "float32"))
        return model

    return build


TinyMLP = Specimen("tiny_mlp", _mlp, (11,))
TinyCNN = Specimen("tiny_cnn", _cnn, (6, 6, 3))
TinyNested = Specimen("tiny_nested", _nested, (9,))
TinySubclassed = Specimen("tiny_subclassed", _in_code(Subclassed), (7,))
TinyUntold = Specimen("tiny_untold", _in_code(Untold), (7,))
TinyLSTM = Specimen("tiny_lstm", _lstm, (3,), words=19)
TinyAttention = Specimen("tiny_attention", _attention, (3, 10))

SPECIMENS: Mapping[str, Specimen] = {
    "cnn": TinyCNN,
    "mlp": TinyMLP,
    "nested": TinyNested,
    "subclassed": TinySubclassed,
    "untold": TinyUntold,
    "recurrent": TinyLSTM,
    "attention": TinyAttention,
}
