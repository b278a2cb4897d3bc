"""The 19 models on which tfmot's quantize_model was tried, where it took four: each trains under QAT."""

import keras
import numpy as np
import pytest
from keras import layers

from lilliput.keras import QATQuantizer

if keras.backend.backend() == "jax":  # minutes of compilation
    pytestmark = pytest.mark.slow


def functional(shape, body):
    inputs = keras.Input(shape)
    x = body(inputs)
    x = layers.Flatten()(x) if len(x.shape) > 2 else x
    return keras.Model(inputs, layers.Dense(3, name="head")(x))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(8, activation="relu", name="hidden")
        self.head = layers.Dense(3, name="head")

    def call(self, x):
        return self.head(self.hidden(x))


def nested():
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu")])
    return functional((6,), inner)


def product(x):
    return layers.Multiply()([layers.Dense(4)(x), layers.Dense(4, activation="sigmoid")(x)])


def einsum(x):
    return layers.EinsumDense("abc,cd->abd", output_shape=(4, 5), bias_axes="d")(x)


MODELS = {
    "nested": ((6,), nested),
    "subclassed": ((6,), Subclassed),
    "LayerNormalization": ((6,), lambda x: layers.LayerNormalization()(layers.Dense(8)(x))),
    "EinsumDense": ((4, 6), einsum),
    "Embedding": ((5,), layers.Embedding(10, 4)),
    "Conv1D": ((8, 2), lambda x: layers.Conv1D(4, 3)(x)),
    "Conv3D": ((5, 5, 5, 1), lambda x: layers.Conv3D(4, 3)(x)),
    "Multiply": ((6,), product),
    "MaxPooling1D": ((8, 2), lambda x: layers.MaxPooling1D(2)(layers.Conv1D(4, 3)(x))),
    "LSTM": ((5, 3), lambda x: layers.LSTM(4)(x)),
    "PReLU": ((6,), lambda x: layers.PReLU()(layers.Dense(4)(x))),
    "GroupNormalization": (
        (8, 8, 1),
        lambda x: layers.GroupNormalization(2)(layers.Conv2D(4, 3)(x)),
    ),
    "MultiHeadAttention": ((5, 8), lambda x: layers.MultiHeadAttention(2, 4)(x, x)),
    "UpSampling1D": ((8, 2), lambda x: layers.UpSampling1D(2)(layers.Conv1D(4, 3)(x))),
    "Rescaling": ((6,), lambda x: layers.Dense(4)(layers.Rescaling(1 / 255)(x))),
    "SeparableConv2D": ((8, 8, 2), lambda x: layers.SeparableConv2D(4, 3)(x)),
    "DepthwiseConv2D": ((8, 8, 2), lambda x: layers.DepthwiseConv2D(3)(x)),
    "Conv2DTranspose": ((4, 4, 2), lambda x: layers.Conv2DTranspose(4, 3)(x)),
    "Dense with gelu": ((6,), lambda x: layers.Dense(8, activation="gelu")(x)),
}


# Those with a graph of their own; layers of one call are as good as the others.
QUICK = {"MultiHeadAttention", "LSTM", "nested", "subclassed", "Embedding", "SeparableConv2D"}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK)) for x in MODELS]
)
def test_a_model_that_tfmot_was_tried_on_trains_under_qat(name):
    shape, body = MODELS[name]
    random = np.random.default_rng(0)
    x = random.random((8, *shape), dtype="float32")
    x = random.integers(0, 10, x.shape) if name == "Embedding" else x
    model = body() if name in ("nested", "subclassed") else functional(shape, body)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    plain = model.predict_on_batch(x)

    quantizer = QATQuantizer(model, [{"quant_bits": 8}], example_inputs=x[:2])
    quantizer.compress()
    assert np.isfinite(model.train_on_batch(x, random.random((8, 3), dtype="float32")))
    quantized = model.predict_on_batch(x)
    assert np.isfinite(quantized).all()
    assert not np.array_equal(quantized, plain)
    assert len(quantizer.get_modules_wrapper()) > 1
    quantizer.strip()
