"""Masks of whole groups by chance, and the masked model to compare a shrunk one with."""

import keras
import numpy as np
import pytest

from lilliput.frameworks.keras.graph import function_of
from lilliput.frameworks.keras.kernels import checked_runner
from lilliput.pruning.layout import _cut
from lilliput.speedup.channels import channel_groups
from lilliput.speedup.shrink import speedup


def array(x):
    return np.array(keras.ops.convert_to_numpy(x.detach() if hasattr(x, "detach") else x))


def shake(model, seed=0):
    """Give every variable numbers by chance, so that no zero or one hides anything."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        if "float" in variable.dtype:
            values = rng.uniform(0.2, 1.0, variable.shape) / max(1, variable.shape[0]) ** 0.5
            signs = rng.choice([-1, 1], variable.shape)
            variable.assign(values if "variance" in variable.path else values * signs)


def masks_of(model, share=0.5, example_inputs=None, seed=1):
    """Return masks that remove a share of each group, by chance."""
    rng = np.random.default_rng(seed)
    groups, masks = channel_groups(model, example_inputs), {}
    tensors = groups.analysis.graph.source.tensors
    for group in groups:
        removed = np.zeros(group.size, bool)
        rows = np.zeros(group.size, int) if group.rows is None else group.rows
        for row in np.unique(rows):
            units = np.flatnonzero(rows == row)
            removed[rng.choice(units, round(len(units) * share), replace=False)] = True
        for piece in group.slices:
            if piece.tensor in tensors.trained:
                shape = tuple(tensors.variables[piece.tensor].shape)
                _cut(masks.setdefault(piece.tensor, np.ones(shape, bool)), piece, removed)
    return masks


def run(model, inputs):
    return [array(x) for x in keras.tree.flatten(checked_runner(model)(inputs))]


def draw(model):
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((3, *x.shape[1:])).astype("float32") for x in model.inputs]
    arrays = [
        x if "float" in t.dtype else np.abs(x * 3).astype("int32")
        for x, t in zip(arrays, model.inputs, strict=True)
    ]
    return keras.tree.pack_sequence_as(function_of(model).input, arrays)


@pytest.fixture
def shrink():
    """Shrink a model by masks, and compare with the model whose weights are set to zero."""

    def check(model, share=0.5, tolerance=1e-5):
        shake(model)
        masks = masks_of(model, share)
        inputs = draw(model)
        before = [tuple(x.shape) for x in model.weights]
        result = speedup(model, masks=masks, inplace=False)
        assert [tuple(x.shape) for x in model.weights] == before
        for name, mask in masks.items():
            variable = channel_groups(model).analysis.graph.source.tensors.variables[name]
            variable.assign(array(variable) * mask)
        expected, received = run(model, inputs), run(result.model, inputs)
        for a, b in zip(expected, received, strict=True):
            assert a.shape == b.shape
            assert np.abs(a).max() > 1e-6
            assert np.abs(a - b).max() <= tolerance * np.abs(a).max()
        assert result.model.count_params() < model.count_params()
        return result

    return check


@pytest.fixture
def group_masks():
    return masks_of


@pytest.fixture
def shaken():
    def give(model):
        shake(model)
        return model

    return give
