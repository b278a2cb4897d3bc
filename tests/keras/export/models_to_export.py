"""Models, quantizers at work on them, and readers for the files they give."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lilliput.keras import PTQQuantizer

layers = keras.layers
TYPES = ["Conv2D", "DepthwiseConv2D", "Dense"]

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="other backends export in a TensorFlow process"
)


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def randomized(model, seed=1):
    """Return a model whose norms and biases are not those of an untrained one."""
    generator = np.random.default_rng(seed)
    for variable in model.weights:
        if variable.name in ("gamma", "moving_variance"):
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
        elif variable.name in ("beta", "bias", "moving_mean"):
            variable.assign(generator.normal(0, 0.2, variable.shape))
        if variable.name == "gamma":
            variable.assign(variable * np.where(generator.random(variable.shape) < 0.3, -1, 1))
    return model


def residual():
    """Conv, norm and ReLU; depthwise and pointwise; addition; max pooling; mean; dense."""
    inputs = keras.Input((12, 12, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv")(inputs)
    x = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(x))
    y = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise")(x)
    y = layers.Conv2D(8, 1, name="point")(layers.ReLU(6.0)(y))
    x = layers.MaxPooling2D()(layers.Add(name="add")([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return randomized(keras.Model(inputs, layers.Dense(5, name="head")(x)))


RESIDUAL = [{"op_types": TYPES}, {"op_types": ["Add"], "quant_types": ["output"]}]


def sequential(shape, *stack):
    return randomized(keras.Sequential([keras.Input(shape), *stack]))


def quantized(model, x, rules=None, quantizer=PTQQuantizer, placed=True, **settings):
    """Return a calibrated quantizer at work on a model."""
    if placed:
        settings["example_inputs"] = x
    found = quantizer(model, rules or [{"op_types": ["default"]}], **settings)
    found.compress()
    if hasattr(found, "calibrate"):
        found.calibrate([x], progress=False)
        found.sample_inputs = ()
    return found


def tensors(path):
    """Return what a LiteRT file says of its tensors, by name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    return {x["name"]: x for x in interpreter.get_tensor_details()}


def operators(path):
    """Return the kinds of the operators of a LiteRT file, each with the type that it returns."""
    from lilliput.export.keras.litert.draft import Draft

    draft = Draft.read(path.read_bytes())
    return [(draft.kind(x), draft.dtype(x.outputs[0])) for x in draft.operators]


def execute(path, *arrays):
    """Return the outputs of a LiteRT file, by LiteRT as it comes."""
    from lilliput.export.keras.litert.run import run

    return run(path.read_bytes(), arrays)
