"""Layers of Keras models: counted by hand, and the model as it was."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
from keras import layers

from lilliput.keras import LevelPruner, QATQuantizer, channel_groups
from lilliput.report.build import build_report
from lilliput.report.snapshot import snapshot


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", name="conv")(image)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.SeparableConv2D(6, 3, name="separable")(x)
    x = layers.Conv2DTranspose(2, 2, strides=2, name="up")(x)
    x = layers.Reshape((12, 24))(x)
    x = layers.LSTM(5, return_sequences=True, name="lstm")(x)
    x = layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    return keras.Model(image, layers.Dense(7, name="head")(x))


@pytest.fixture(scope="module")
def taken(model):
    before = [np.array(x) for x in model.get_weights()]
    found = snapshot(model, np.random.rand(2, 8, 8, 3).astype("float32"))
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert not any("_lilliput" in vars(x) for x in model._flatten_layers())
    return found


def test_every_kind_of_layer_is_counted(taken):
    macs = {layer.name: layer.macs for layer in taken.layers}
    assert macs["conv"] == 64 * 4 * 3 * 9
    assert macs["separable"] == 36 * (4 * 9 + 4 * 6)
    assert macs["up"] == 36 * 6 * 2 * 4
    assert macs["lstm"] == 12 * (24 * 20 + 5 * 20)
    assert macs["attention"] == 2 * 12 * 12 * (3 + 3)
    assert macs["attention/query"] == 12 * 5 * 6
    assert macs["head"] == 12 * 5 * 7
    assert macs["norm"] == 0
    assert taken.batch == 2 and taken.macs == sum(macs.values())


def test_parameters_are_those_that_are_trained(taken, model):
    trained = sum(int(np.prod(x.shape)) for x in model.trainable_variables)
    assert taken.parameters == trained
    assert {layer.type for layer in taken.layers} >= {"Conv2D", "LSTM", "EinsumDense", "Dense"}


def test_masks_count_as_zeros_and_bits_are_seen():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(10, name="fc")])
    LevelPruner(model, [{"op_types": ["Dense"], "sparsity": 0.5}]).compress()
    quantizer = QATQuantizer(model, [{"op_types": ["Dense"], "quant_bits": 4}])
    quantizer.compress()
    (layer,) = snapshot(model).layers
    assert (layer.macs, layer.bits, layer.type) == (60, 4, "Dense")
    assert layer.nonzeros == 30 and layer.zeros >= 0.5


def test_a_report_takes_it_with_the_channel_groups(taken):
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, name="hidden"), layers.Dense(2, name="out")]
    )
    report = build_report(before=taken, groups=channel_groups(model))
    group = next(group for group in report.groups if not group.reason)
    assert (group.size, group.makes, group.reads) == (8, ["hidden"], ["out"])
    assert '<section id="groups"' in report.to_html()
