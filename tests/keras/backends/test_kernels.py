"""Kernels are compared with the same layer in channels_last, and that one here with NumPy."""

import keras
import numpy as np
import pytest
from keras import layers

from lilliput.frameworks.keras import kernels
from lilliput.frameworks.keras.kernels import KernelError, checked_way, fault_of, runner
from lilliput.frameworks.keras.variables import to_array

WAYS = {"tensorflow": ("graph", "eager", "XLA"), "jax": ("XLA", "eager"), "torch": ("eager",)}


@pytest.fixture(autouse=True)
def _fresh():
    kernels._probe.cache_clear()
    yield
    kernels._probe.cache_clear()


def model_of(layer, shape=(4, 6, 7)):
    return keras.Sequential([keras.Input(shape), layer])


def convolved(x, kernel):
    """Return a convolution of stride 1 without padding, by its definition."""
    height, width = (x.shape[i + 1] - kernel.shape[i] + 1 for i in (0, 1))
    total = 0.0
    for i, j in np.ndindex(*kernel.shape[:2]):
        total = total + x[:, i : i + height, j : j + width] @ kernel[i, j]
    return total


@pytest.mark.parametrize("way", WAYS[keras.backend.backend()])
def test_the_usual_kernel_is_that_of_numpy(way):
    model = model_of(layers.Conv2D(8, 3), (9, 10, 4))
    x = np.random.default_rng(0).standard_normal((2, 9, 10, 4)).astype("float32")
    expected = convolved(x.astype("float64"), to_array(model.layers[0].kernel).astype("float64"))
    received = to_array(runner(model, way)(x))
    assert np.abs(received - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("way", [way for way in WAYS[keras.backend.backend()] if way != "eager"])
def test_a_model_is_compiled_once_and_runs_with_its_present_weights(way):
    traced = []

    class Noting(layers.Dense):
        def call(self, x):
            traced.append(x.shape)
            return super().call(x)

    model = keras.Sequential([keras.Input((4,)), Noting(3)])
    x, run = np.ones((2, 4), "float32"), runner(model, way)
    first = to_array(run(x))
    traced.clear()
    model.set_weights([2 * weight for weight in model.get_weights()])
    assert np.allclose(to_array(run(x)), 2 * first, rtol=1e-6)
    assert traced == []


FORMS = {
    "plain": lambda **k: layers.Conv2D(8, 3, strides=2, **k),
    "groups": lambda **k: layers.Conv2D(8, 3, groups=2, dilation_rate=2, **k),
    "depthwise": lambda **k: layers.DepthwiseConv2D(3, depth_multiplier=2, **k),
    "separable": lambda **k: layers.SeparableConv2D(8, 3, **k),
    "transposed": lambda **k: layers.Conv2DTranspose(8, 3, strides=2, **k),
    "maximum": lambda **k: layers.MaxPooling2D(2, **k),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_that_runs_is_either_right_or_found_to_be_wrong(form):
    model = model_of(FORMS[form](data_format="channels_first", padding="same"))
    reference = model_of(FORMS[form](data_format="channels_last", padding="same"), (6, 7, 4))
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 7)).astype("float32")
    for way in WAYS[keras.backend.backend()]:
        fault = fault_of(model.layers[0], way)
        if fault is not None and "does not run" in fault:
            continue
        reference.set_weights(model.get_weights())
        expected = np.moveaxis(to_array(runner(reference, way)(np.moveaxis(x, 1, -1))), -1, 1)
        error = np.abs(to_array(runner(model, way)(x)) - expected).max() / np.abs(expected).max()
        assert (fault is None) == (error < 1e-4)


@pytest.mark.parametrize("way", WAYS[keras.backend.backend()])
def test_a_bias_along_the_wrong_axis_is_found(way):
    layer = layers.Conv2D(6, 3, groups=2, padding="same", data_format="channels_first")
    model = model_of(layer, (4, 7, 6))
    model.set_weights([np.ones((3, 3, 2, 6)), np.arange(6.0)])
    received = to_array(runner(model, way)(np.zeros((1, 4, 7, 6), "float32")))
    is_right = np.array_equal(received[0, :, 0, 0], np.arange(6.0))
    assert (fault_of(layer, way) is None) == is_right


def test_models_in_channels_last_are_not_probed(monkeypatch):
    monkeypatch.setattr(kernels, "_probe", None)
    assert checked_way(model_of(layers.Conv2D(8, 3))) in WAYS[keras.backend.backend()]


def test_the_refusal_names_layer_kernel_and_error(monkeypatch):
    monkeypatch.setattr(kernels, "fault_of", lambda layer, way: "off by 2.0e-02")
    model = model_of(layers.Conv2D(8, 3, data_format="channels_first", name="stem"))
    with pytest.raises(KernelError, match=r"channels_first kernels of .* layer 'stem' \(Conv2D"):
        checked_way(model)
