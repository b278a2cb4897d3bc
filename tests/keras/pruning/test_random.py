"""RandomPruner: layers of the same name lose the same weights as in torch."""

from collections import OrderedDict

import keras
import numpy as np
from torch import nn

import lilliput.keras as lk
import lilliput.torch as lt

# The order in which torch stores the axes of each Keras weight.
AXES = {
    "conv": (3, 2, 0, 1),
    "depthwise": (2, 3, 0, 1),
    "up": (3, 2, 0, 1),  # as stored by Keras: height, width, outputs, inputs
    "line": (2, 1, 0),
    "fc": (1, 0),
    "table": (0, 1),
}


def torch_net():
    layers = {
        "conv": nn.Conv2d(3, 6, (3, 2)),
        "depthwise": nn.Conv2d(6, 6, 3, groups=6),
        "up": nn.ConvTranspose2d(6, 5, (3, 2)),
        "line": nn.Conv1d(4, 8, 3),
        "fc": nn.Linear(7, 9),
        "table": nn.Embedding(11, 4),
    }
    return nn.Sequential(OrderedDict(layers))


def keras_net():
    shapes = {
        "conv": (9, 9, 3),
        "depthwise": (9, 9, 6),
        "up": (4, 4, 6),
        "line": (9, 4),
        "fc": (7,),
    }
    inputs = {name: keras.Input(shape) for name, shape in shapes.items()}
    inputs["table"] = keras.Input((2,), dtype="int32")
    layers = {
        "conv": keras.layers.Conv2D(6, (3, 2), name="conv"),
        "depthwise": keras.layers.DepthwiseConv2D(3, name="depthwise"),
        "up": keras.layers.Conv2DTranspose(5, (3, 2), name="up"),
        "line": keras.layers.Conv1D(8, 3, name="line"),
        "fc": keras.layers.Dense(9, name="fc"),
        "table": keras.layers.Embedding(11, 4, name="table"),
    }
    outputs = [layer(inputs[name]) for name, layer in layers.items()]
    return keras.Model(list(inputs.values()), outputs)


def zeros_of(pruner):
    pruner.compress()
    masks = {w.name: w.weight_mask for w in pruner.get_modules_wrapper()}
    assert masks.keys() == AXES.keys()
    return {name: keras.ops.convert_to_numpy(mask) == 0 for name, mask in masks.items()}


def test_layers_of_the_same_name_lose_the_same_weights_as_in_torch():
    rules = [{"sparsity": 0.4}]
    ours = zeros_of(lk.RandomPruner(keras_net(), rules, seed=3))
    theirs = zeros_of(lt.RandomPruner(torch_net(), rules, seed=3))
    for name, axes in AXES.items():
        np.testing.assert_array_equal(ours[name].transpose(axes), theirs[name], name)
        assert 0.3 < theirs[name].mean() < 0.5
