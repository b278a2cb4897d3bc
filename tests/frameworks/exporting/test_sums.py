"""What layers add up is the same in both frameworks, whatever the layout of kernels and data."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from lilliput.frameworks.torch.export.sums import sums_of as sums_of_torch

keras = pytest.importorskip("keras")


def wrapper(layer, shape, out_axis):
    return SimpleNamespace(module=layer, layer_info=SimpleNamespace(shape=shape, out_axis=out_axis))


def both(torch_layer, keras_layer):
    from lilliput.frameworks.keras.export.sums import sums_of

    first = wrapper(torch_layer, tuple(torch_layer.weight.shape), 0)
    kernel = tuple(keras_layer.kernel.shape)
    return sums_of_torch(first), sums_of(wrapper(keras_layer, kernel, len(kernel) - 1))


def test_a_convolution():
    layer = keras.layers.Conv2D(6, 3, groups=2, padding="same")
    layer.build((None, 5, 7, 4))
    ours, theirs = both(nn.Conv2d(4, 6, 3, groups=2, padding=1), layer)
    assert (ours.channels, ours.groups, ours.is_padded) == (4, 2, True)
    assert (theirs.channels, theirs.groups, theirs.is_padded) == (4, 2, True)
    weight = np.random.default_rng(0).integers(-127, 128, (6, 2, 3, 3))
    assert np.array_equal(ours.rows(weight), weight)
    assert np.array_equal(theirs.rows(weight.transpose(2, 3, 1, 0)), weight)
    data = np.random.default_rng(1).standard_normal((2, 4, 5, 7))
    rows = data.transpose(1, 0, 2, 3).reshape(4, -1)
    assert np.array_equal(ours.by_channel(data), rows)
    assert np.array_equal(ours.by_channel(data[0]), data[0].reshape(4, -1))  # without a batch
    assert np.array_equal(theirs.by_channel(data.transpose(0, 2, 3, 1)), rows)
    assert ours.by_channel(data[:, :3]) is None and theirs.by_channel(data) is None
    assert ours.by_channel(data[:0]) is None


def test_a_linear_layer():
    layer = keras.layers.Dense(3)
    layer.build((None, 5))
    ours, theirs = both(nn.Linear(5, 3), layer)
    assert not ours.is_padded and not theirs.is_padded
    weight = np.arange(15).reshape(3, 5)
    assert np.array_equal(ours.rows(weight), weight)
    assert np.array_equal(theirs.rows(weight.T), weight)
    data = np.random.default_rng(1).standard_normal((2, 4, 5))
    for sums in (ours, theirs):
        assert np.array_equal(sums.by_channel(data), data.reshape(-1, 5).T)


def test_other_layers_have_no_sums():
    assert sums_of_torch(wrapper(nn.ConvTranspose2d(2, 2, 3), (2, 2, 3, 3), 1)) is None
