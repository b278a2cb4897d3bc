"""Layers of several weights, and those whose slices make several channels, are quantized too."""

import keras
import numpy as np
import pytest
from keras import layers

from lilliput.keras import PTQQuantizer

BATCH = np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype("float32")


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
@pytest.mark.parametrize("kind", ["separable", "depthwise"])
def test_convolutions_of_several_parts_are_calibrated(kind, granularity):
    inputs = keras.Input((8, 8, 3))
    made = {
        "separable": layers.SeparableConv2D(4, 3, name="conv"),
        "depthwise": layers.DepthwiseConv2D(3, depth_multiplier=2, name="conv"),
    }[kind]
    x = layers.BatchNormalization()(made(inputs))
    model = keras.Model(inputs, layers.GlobalAveragePooling2D()(x))
    before = model.predict(BATCH, verbose=0)
    rule = {"op_types": ["default"], "granularity": {"weight": granularity}}
    quantizer = PTQQuantizer(model, [rule])
    quantizer.compress()
    quantizer.calibrate([BATCH], progress=False)
    after = model.predict(BATCH, verbose=0)
    assert 0 < np.abs(after - before).max() < 0.1
    assert sum("input" in wrapper.roles for wrapper in quantizer.get_wrappers()) == 1
