"""Small parts of the export: layouts, scales, names, sums."""

import numpy as np
import pytest
from models_to_export import data

from lilliput.export.guard.pairs import worst_pairs
from lilliput.export.keras.litert.draft import Scales
from lilliput.export.keras.litert.run import dequantize, quantize
from lilliput.export.keras.litert.weights import Known, _match
from lilliput.export.keras.scopes import layer_of
from lilliput.export.steps import aligned
from lilliput.frameworks.keras.export.sums import sums_of_einsum


@pytest.mark.parametrize(
    ("kind", "shape", "turn", "axis"),
    [
        ("CONV_2D", (3, 3, 4, 5), lambda x: x.transpose(3, 0, 1, 2), 0),
        ("CONV_2D", (3, 4, 5), lambda x: x.transpose(2, 0, 1)[:, None], 0),
        ("DEPTHWISE_CONV_2D", (3, 3, 4, 2), lambda x: x.reshape(1, 3, 3, 8), 3),
        ("FULLY_CONNECTED", (6, 5), lambda x: x.T, 0),
        ("FULLY_CONNECTED", (6, 2, 3), lambda x: x.reshape(6, 6).T, 0),
        ("TRANSPOSE_CONV", (2, 2, 5, 4), lambda x: x.transpose(2, 0, 1, 3), 0),
        ("GATHER", (9, 4), lambda x: x, 1),
    ],
)
def test_weights_are_found_by_what_is_in_them(kind, shape, turn, axis):
    weight, other = data(*shape), data(*shape, seed=1)
    known = [Known("other", other), Known("layer", weight)]
    constant = turn(weight)
    found = _match(kind, constant, axis, known, set())
    assert found is not None and found[1].name == "layer"
    factor = np.array([-2.0, 0.5, 3, 0, -1, 7, 1.5, 9])[: constant.shape[axis]]
    folded = np.moveaxis(np.moveaxis(constant, axis, -1) * factor, -1, axis)
    found = _match(kind, folded.astype("float32"), axis, known, set())
    assert found is not None and found[1].name == "layer"
    assert _match(kind, turn(data(*shape, seed=2)), axis, known, set()) is None


def test_tensors_of_files_are_turned_as_the_simulation_has_them():
    expected = data(2, 4, 4, 4)
    assert np.array_equal(aligned(np.moveaxis(expected, -1, 1), expected), expected)
    assert np.array_equal(aligned(expected.transpose(0, 2, 1, 3), expected), expected)
    flat = np.moveaxis(expected, -1, 1).reshape(2, 4, 1, 16)
    assert np.array_equal(aligned(flat, expected.reshape(2, 16, 4)), expected.reshape(2, 16, 4))


def test_numbers_become_integers_and_come_back():
    scales = Scales(np.float32([0.5]), np.array([-3]))
    integers = quantize(np.array([0.0, 1.0, 1e9, -1e9]), scales)
    assert integers.tolist() == [-3, -1, 127, -128]
    assert dequantize(integers[:2], scales).tolist() == [0.0, 1.0]


def test_layers_are_known_by_the_scopes_of_tensorflow():
    paths = ["block/conv", "conv_1", "conv", "block"]
    assert layer_of("model/conv_1/Relu:0", paths) == "conv_1"
    assert layer_of("model/conv_2/convolution", paths) == "conv"
    assert layer_of("model/block_1/conv/convolution", paths) == "block/conv"
    assert layer_of("Relu__12", paths) == ""


def test_products_of_other_kinds_have_no_sums_to_guard():
    assert sums_of_einsum("abcd,cde->abe", (2, 4, 8)).data == (-2, -1)
    assert sums_of_einsum("...x,xy->...y", (8, 4)).channels == 8
    assert sums_of_einsum("ab,ab->ab", (2, 3)) is None


def test_sums_of_pairs():
    weight = np.array([[127, 127, 1], [64, 64, 127], [127, -127, 127]])
    assert worst_pairs(weight).tolist() == [64770, 32640, 32385]
