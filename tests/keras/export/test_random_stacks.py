"""Random stacks of layers: whatever is exported is within one step of the simulation."""

import keras
import numpy as np
import pytest
from models_to_export import data, layers, quantized, randomized, tensorflow_only

from lilliput.keras import export_litert, export_onnx

pytestmark = tensorflow_only


def grow(x, generator, skips):
    """Put another layer behind a tensor."""
    kind, width = generator.integers(0, 10), int(generator.integers(1, 9))
    padding = ["same", "valid"][generator.integers(0, 2)] if x.shape[1] > 3 else "same"
    choices = [
        layers.Conv2D(width, 3, padding=padding, use_bias=bool(width % 2)),
        layers.Conv2D(width, 1, strides=2),
        layers.Conv2D(width, 3, padding="same", dilation_rate=2),
        layers.DepthwiseConv2D(3, padding="same"),
        layers.Conv2DTranspose(width, 2, strides=1, padding="same"),
        layers.MaxPooling2D(2, padding="same"),
        layers.AveragePooling2D(2, padding="same"),
        layers.ZeroPadding2D(1),
        layers.Dense(width),
        layers.UpSampling2D(2) if x.shape[1] < 8 else layers.Identity(),
    ]
    x = choices[kind](x)
    if generator.integers(0, 2):
        x = layers.BatchNormalization()(x)
    activations = ["linear", "relu", "relu6", "leaky_relu", "swish", "tanh"]
    x = layers.Activation(activations[generator.integers(0, 6)])(x)
    same = [y for y in skips if y.shape == x.shape]
    if same and generator.integers(0, 2):
        x = layers.Add()([x, same[0]])
    near = [y for y in skips if y.shape[1:3] == x.shape[1:3]]
    return layers.Concatenate()([x, near[-1]]) if near and generator.integers(0, 2) else x


def stack(seed):
    generator = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((10, 10, 3))
    x, skips = inputs, []
    for _ in range(generator.integers(2, 7)):
        x = grow(x, generator, skips)
        skips.append(x)
    ends = [layers.Flatten(), layers.GlobalAveragePooling2D(), layers.GlobalMaxPooling2D()]
    x = layers.Dense(5)(ends[generator.integers(0, 3)](x))
    return randomized(keras.Model(inputs, x), seed), generator


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(x, marks=pytest.mark.slow) for x in range(3, 40))]
)
def test_random_stacks_are_exported_within_one_step(tmp_path, seed):
    model, generator = stack(seed)
    x = data(4, 10, 10, 3, seed=seed)
    rules = [{"op_types": ["default"], "quant_bits": {"weight": 7, "input": 8, "output": 8}}]
    if any(isinstance(layer, layers.Add) for layer in model.layers):
        rules.append({"op_types": ["Add"], "quant_types": ["output"]})
    quantizer = quantized(model, x, rules, placed=bool(generator.integers(0, 2)))
    for export, suffix in ((export_litert, "tflite"), (export_onnx, "onnx")):
        result = export(quantizer, tmp_path / f"model.{suffix}", x)
        assert all(found.local_lsb <= 1.001 for found in result.runtimes.values())
