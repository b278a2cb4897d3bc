"""The network of ``digits_search`` in torch and in Keras, with the same weights and data."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import torch
from digits_search import accuracy, digits, trained, weights
from keras import layers

import lilliput.keras
import lilliput.torch

NAMES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
NAMES |= {"moving_mean": "running_mean", "moving_variance": "running_var"}


def channels_last(x):
    return np.ascontiguousarray(np.transpose(x, (0, 2, 3, 1)))


def keras_net(width=16):
    inputs = keras.Input((8, 8, 1))
    stem = layers.Conv2D(width, 3, padding="same", name="stem")(inputs)
    stem = layers.ReLU()(stem)
    x = layers.Conv2D(width, 3, padding="same", use_bias=False, name="inner")(stem)
    x = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5, name="norm")(x))
    x = layers.Conv2D(width, 3, padding="same", name="outer")(x)
    x = layers.ZeroPadding2D(1)(layers.ReLU()(layers.Add()([stem, x])))
    x = layers.ReLU()(layers.Conv2D(2 * width, 3, strides=2, name="down")(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, name="head")(x), name="net")


def keras_trained():
    model, held = keras_net(), weights()
    for layer in model.layers:
        for variable in layer.variables:
            array = held[f"{layer.name}.{NAMES[variable.name]}"].numpy().copy()
            order = {4: (2, 3, 1, 0), 2: (1, 0)}.get(array.ndim)
            variable.assign(array if order is None else array.transpose(order))
    return model


def keras_accuracy(model):
    _, _, x, y = digits()
    answers = keras.ops.convert_to_numpy(model(channels_last(x.numpy()), training=False))
    return float((answers.argmax(1) == y.numpy()).mean())


@dataclass(frozen=True)
class Side:
    """What a search is given on one framework."""

    package: Any
    trained: Any
    accuracy: Any
    inputs: Any  # from torch's layout

    def batches(self, count=4):
        return [self.inputs(x) for x in digits()[0][: 64 * count].split(64)]


SIDES = {
    "torch": Side(lilliput.torch, trained, accuracy, lambda x: x),
    "keras": Side(
        lilliput.keras, keras_trained, keras_accuracy, lambda x: channels_last(x.numpy())
    ),
}


def same_answers():
    model, x = trained(), digits()[0][:8]
    with torch.no_grad():
        one = model(x).numpy()
    return one, keras.ops.convert_to_numpy(keras_trained()(channels_last(x.numpy())))
