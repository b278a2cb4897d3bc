"""Networks by chance: whatever is wired to whatever, the shrunk model equals the masked one."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lilliput.speedup.channels import channel_groups

ACTIVATIONS = ["relu", "sigmoid", "tanh", "gelu", "exponential", "softmax", None]
MERGES = [layers.Add, layers.Multiply, layers.Subtract, layers.Maximum, layers.Average]


class Maker:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.values = [keras.Input((6, 6, 4))]
        self.steps = [
            *(self.convolve, self.separate, self.transpose, self.mix, self.group, self.convolve),
            *(self.normalize, self.spread, self.join, self.merge, self.gate, self.slope),
            *(self.shuffle, self.pool, self.view),
        ]

    def one_of(self, items):
        return items[self.rng.integers(len(items))]

    def make(self):
        for _ in range(self.rng.integers(5, 12)):
            x = self.one_of(self.steps)(self.one_of(self.values))
            self.values.append(x if x.shape[-1] <= 24 else layers.Conv2D(6, 1)(x))
        flat = layers.Flatten()(self.values[-1])
        mean = layers.GlobalMaxPooling2D()(self.one_of(self.values))
        return keras.Model(self.values[0], layers.Dense(3)(layers.Concatenate()([flat, mean])))

    def options(self):
        return {"padding": "same", "activation": self.one_of(ACTIVATIONS)}

    def convolve(self, x):
        return layers.Conv2D(self.one_of([4, 6, 8]), 3, use_bias=False, **self.options())(x)

    def separate(self, x):
        return layers.SeparableConv2D(6, 3, depth_multiplier=2, **self.options())(x)

    def transpose(self, x):
        return layers.Conv2DTranspose(self.one_of([4, 8]), 3, **self.options())(x)

    def mix(self, x):
        return layers.Dense(self.one_of([4, 6]), activation=self.one_of(ACTIVATIONS))(x)

    def group(self, x):
        groups = self.one_of([n for n in (1, 2, x.shape[-1]) if x.shape[-1] % n == 0])
        return layers.Conv2D(2 * x.shape[-1], 1, groups=groups)(x)

    def normalize(self, x):
        return layers.BatchNormalization(scale=bool(self.rng.integers(2)))(x)

    def spread(self, x):
        return layers.DepthwiseConv2D(3, depth_multiplier=2, **self.options())(x)

    def join(self, x):
        return layers.Concatenate()([x, self.one_of(self.values)])

    def merge(self, x):
        other = self.one_of(self.values)
        other = other if other.shape[-1] == x.shape[-1] else layers.Conv2D(x.shape[-1], 1)(other)
        return self.one_of(MERGES)()([x, other])

    def gate(self, x):
        narrow = layers.Dense(4, "relu")(layers.GlobalAveragePooling2D(keepdims=True)(x))
        return x * layers.Dense(x.shape[-1], "sigmoid")(narrow)

    def slope(self, x):
        return layers.PReLU(shared_axes=self.one_of([None, [1, 2]]))(x)

    def shuffle(self, x):
        channels = x.shape[-1]
        parts = ops.reshape(x, (-1, 6, 6, 2, channels // 2))
        return ops.reshape(ops.transpose(parts, (0, 1, 2, 4, 3)), (-1, 6, 6, channels))

    def pool(self, x):
        return layers.MaxPooling2D(3, 1, padding="same")(x)

    def view(self, x):
        return layers.Reshape((6, 6, -1))(layers.Reshape((36, x.shape[-1]))(x))


@pytest.mark.parametrize("seed", range(8))
def test_a_network_by_chance(shrink, seed):
    model = Maker(seed).make()
    if not len(channel_groups(model)):
        pytest.skip("nothing can be removed from this one")
    shrink(model, tolerance=1e-4)
