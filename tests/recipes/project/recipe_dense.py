"""A Keras network on scikit-learn's digits, as recipes name it."""

import functools

import keras
import numpy as np
from sklearn.datasets import load_digits


@functools.cache
def digits():
    bunch = load_digits()
    return (bunch.data / 16).astype("float32"), bunch.target


def build():
    layers = [
        keras.layers.Dense(32, activation="relu", name="first"),
        keras.layers.Dropout(0.1, name="drop"),
        keras.layers.Dense(16, activation="relu", name="second"),
        keras.layers.Dense(10, name="head"),
    ]
    model = keras.Sequential([keras.Input((64,), name="pixels"), *layers], name="digits")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def build_normed():
    layers = [keras.layers.Dense(32, name="first"), keras.layers.BatchNormalization(name="norm")]
    layers += [keras.layers.ReLU(name="relu"), keras.layers.Dense(10, name="head")]
    return keras.Sequential([keras.Input((64,), name="pixels"), *layers], name="normed")


def batches():
    inputs, labels = digits()
    return [(inputs[i], labels[i]) for i in np.split(np.random.permutation(512), 16)]


def accuracy(model):
    inputs, labels = digits()
    outputs = np.asarray(model.predict(inputs[512:1024], verbose=0))
    return float((outputs.argmax(1) == labels[512:1024]).mean())


def agreement(model):
    """Return how often a model gives a digit the class that the original gives it."""
    keras.utils.set_random_seed(seed_of_the_model())
    inputs, _ = digits()
    one, other = (np.asarray(x.predict(inputs[512:1024], verbose=0)) for x in (model, build()))
    return float((one.argmax(1) == other.argmax(1)).mean())


def seed_of_the_model():
    from lilliput.recipes.units import seed_for

    return seed_for(0, "model")
