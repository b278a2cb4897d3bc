"""One rule serves both frameworks: a network written twice, with the same weights, has the same groups."""

import keras
import numpy as np
import torch
from keras import layers
from torch import nn

import lilliput.keras
import lilliput.torch

# How the dimensions of a torch parameter are numbered in Keras.
CONV, LINEAR, VECTOR = {0: 3, 1: 2}, {0: 1, 1: 0}, {0: 0}


class Net(nn.Module):
    """A grouped and a depthwise convolution, a sum, a product axis, a norm over channels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, eps=1e-3)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.reduce = nn.Conv2d(8, 4, 1)
        self.hidden = nn.Linear(4 * 6 * 6, 10)
        self.layer_norm = nn.LayerNorm(10, eps=1e-3)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.depthwise(torch.relu(self.grouped(x)))
        x = self.reduce(x).permute(0, 2, 3, 1).flatten(1)
        return self.head(self.layer_norm(torch.relu(self.hidden(x))))


def in_keras():
    inputs = keras.Input((6, 6, 3))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(inputs)
    x = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    y = layers.Conv2D(8, 3, padding="same", groups=2, activation="relu", name="grouped")(x)
    x = layers.Add()([x, layers.DepthwiseConv2D(3, padding="same", name="depthwise")(y)])
    x = layers.Flatten()(layers.Conv2D(4, 1, name="reduce")(x))
    x = layers.Dense(10, "relu", name="hidden")(x)
    x = layers.LayerNormalization(name="layer_norm")(x)
    return keras.Model(inputs, layers.Dense(3, name="head")(x))


NAMES = {
    **{f"{x}.weight": (f"{x}.kernel", CONV) for x in ("stem", "grouped", "reduce")},
    **{f"{x}.weight": (f"{x}.kernel", LINEAR) for x in ("hidden", "head")},
    "depthwise.weight": ("depthwise.kernel", {0: 2}),
    **{f"{x}.weight": (f"{x}.gamma", VECTOR) for x in ("norm", "layer_norm")},
    **{f"{x}.bias": (f"{x}.beta", VECTOR) for x in ("norm", "layer_norm")},
    "norm.running_mean": ("norm.moving_mean", VECTOR),
    "norm.running_var": ("norm.moving_variance", VECTOR),
    **{
        f"{x}.bias": (f"{x}.bias", VECTOR)
        for x in ("stem", "grouped", "depthwise", "reduce", "hidden", "head")
    },
}
TURNED = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}


def copy_weights(model, twin):
    """Put the numbers of a torch model into its Keras twin."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, (theirs, _) in NAMES.items():
        path, _, attribute = theirs.rpartition(".")
        array = held[name].detach().numpy()
        order = (2, 3, 0, 1) if name == "depthwise.weight" else TURNED[array.ndim]
        getattr(twin.get_layer(path), attribute).assign(array.transpose(order))


def slices(groups, names=None):
    """Return what groups consist of: tensor, dimension, units of each index, whether it makes them."""
    found = set()
    for group in groups:
        for s in group.slices:
            tensor, dim = s.tensor, s.dim
            if names is not None:
                tensor, dims = names[tensor]
                dim = dims[dim]
            rows = None if group.rows is None else tuple(group.rows.tolist())
            found.add((tensor, dim, str(s.units.tolist()), s.is_output, group.size, rows))
    return found


def randomised():
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        for x in [*model.parameters(), model.norm.running_mean]:
            x.normal_(0, 0.5)
        model.norm.running_var.uniform_(0.5, 1.5)
    return model


def test_the_groups_the_costs_and_the_smaller_networks_are_the_same():
    model, twin = randomised(), in_keras()
    copy_weights(model, twin)
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 3)).astype("float32")
    images = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    theirs = lilliput.torch.channel_groups(model, images)
    ours = lilliput.keras.channel_groups(twin)
    assert len(ours) == len(theirs) == 3
    assert slices(ours) == slices(theirs, NAMES)
    assert ours.count_parameters() == theirs.count_parameters()

    rules = [{"op_types": ["default"], "sparsity": 0.5}]
    lilliput.torch.L1NormPruner(model, rules, example_inputs=images).compress()
    lilliput.keras.L1NormPruner(twin, rules).compress()
    first, second = lilliput.torch.speedup(model, images), lilliput.keras.speedup(twin, x)
    assert first.parameters == second.parameters
    assert first.macs == second.macs
    with torch.no_grad():
        expected = first.model(images).numpy()
    received = np.array(keras.ops.convert_to_numpy(second.model(x, training=False)))
    assert np.abs(expected - received).max() < 1e-4 * np.abs(expected).max()
