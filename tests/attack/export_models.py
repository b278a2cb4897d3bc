"""Small networks of 38 shapes, each with a function that makes inputs for it."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

SHAPES = {}


def shape(make_inputs):
    """Register a function that returns a network."""

    def register(function):
        SHAPES[function.__name__] = (function, make_inputs)
        return function

    return register


def rows(*sizes):
    return lambda n: (torch.randn(n, *sizes),)


def pairs(*sizes):
    return lambda n: (torch.randn(n, *sizes), torch.randn(n, *sizes))


def tokens(n):
    return (torch.randint(0, 30, (n, 6)),)


class Net(nn.Module):
    """Layers by name, and a forward that gets the module and its inputs."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


class Net2(Net):
    """The same with two inputs."""

    def forward(self, x, y):
        return self.function(self, x, y)


def conv(i, o, k=3, **options):
    return nn.Conv2d(i, o, k, **{"padding": k // 2, **options})


def head(width, outputs=4):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, outputs))


IMAGE, ROW, SEQUENCE = rows(3, 8, 8), rows(12), rows(6, 16)


@shape(ROW)
def mlp():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))


@shape(ROW)
def deep_mlp():
    inner = [x for _ in range(6) for x in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), *inner, nn.Linear(16, 4))


@shape(ROW)
def normed_mlp():
    return nn.Sequential(
        nn.Linear(12, 16, bias=False),
        nn.BatchNorm1d(16),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(16, 4),
    )


@shape(ROW)
def layer_norm_mlp():
    return nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 4))


@shape(SEQUENCE)
def linear_on_sequences():
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8))


@shape(IMAGE)
def plain_conv():
    return nn.Sequential(conv(3, 8), nn.ReLU(), nn.MaxPool2d(2), conv(8, 8), nn.ReLU(), head(8))


@shape(IMAGE)
def conv_bn():
    return nn.Sequential(
        conv(3, 8, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        conv(8, 8),
        nn.BatchNorm2d(8),
        head(8),
    )


@shape(IMAGE)
def strided_and_dilated():
    return nn.Sequential(
        conv(3, 8, stride=2), nn.ReLU(), conv(8, 8, dilation=2, padding=2), nn.ReLU(), head(8)
    )


@shape(IMAGE)
def reflecting():
    return nn.Sequential(conv(3, 8, padding_mode="reflect"), nn.ReLU(), head(8))


@shape(IMAGE)
def depthwise():
    return nn.Sequential(
        conv(3, 8), nn.ReLU6(), conv(8, 8, groups=8), nn.ReLU6(), conv(8, 8, 1), head(8)
    )


@shape(IMAGE)
def grouped():
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 12, groups=4), nn.ReLU(), head(12))


@shape(rows(4, 20))
def conv1d():
    return nn.Sequential(
        nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3, stride=2), nn.Flatten(), nn.Linear(64, 4)
    )


@shape(rows(2, 4, 6, 6))
def conv3d():
    return nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(576, 4))


@shape(IMAGE)
def transposed():
    return nn.Sequential(
        conv(3, 8, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(), conv(4, 2)
    )


@shape(IMAGE)
def residual():
    def forward(m, x):
        x = m.relu(m.bn1(m.conv1(x)))
        return m.head(m.relu(m.bn2(m.conv2(x)) + x))

    layers = {"conv1": conv(3, 8), "bn1": nn.BatchNorm2d(8), "conv2": conv(8, 8)}
    return Net(forward, **layers, bn2=nn.BatchNorm2d(8), relu=nn.ReLU(), head=head(8))


@shape(IMAGE)
def functional_residual():
    def forward(m, x):
        x = F.relu(m.conv1(x))
        return m.head(F.relu(m.conv2(x) + x))

    return Net(forward, conv1=conv(3, 8), conv2=conv(8, 8), head=head(8))


@shape(IMAGE)
def inverted_residual():
    def forward(m, x):
        x = m.stem(x)
        return m.head(x + m.block(x))

    block = [conv(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU6(), conv(16, 16, groups=16), nn.ReLU6()]
    return Net(forward, stem=conv(3, 8), block=nn.Sequential(*block, conv(16, 8, 1)), head=head(8))


@shape(IMAGE)
def squeeze_and_excite():
    def forward(m, x):
        x = F.relu(m.stem(x))
        scale = m.up(F.relu(m.down(x.mean((2, 3), keepdim=True))))
        return m.head(x * F.hardsigmoid(scale))

    return Net(forward, stem=conv(3, 8), down=conv(8, 4, 1), up=conv(4, 8, 1), head=head(8))


@shape(IMAGE)
def inception():
    def forward(m, x):
        return m.head(torch.cat([F.relu(m.a(x)), F.relu(m.b(x)), F.max_pool2d(x, 3, 1, 1)], 1))

    return Net(forward, a=conv(3, 4, 1), b=conv(3, 4), head=head(11))


@shape(IMAGE)
def dense_connections():
    def forward(m, x):
        for layer in m.layers:
            x = torch.cat([x, F.relu(layer(x))], 1)
        return m.head(x)

    return Net(forward, layers=nn.ModuleList([conv(3, 4), conv(7, 4), conv(11, 4)]), head=head(15))


@shape(IMAGE)
def u_net():
    def forward(m, x):
        a = F.relu(m.a(x))
        b = F.relu(m.b(F.avg_pool2d(a, 2)))
        return m.c(torch.cat([a, F.interpolate(b, scale_factor=2.0, mode="nearest")], 1))

    return Net(forward, a=conv(3, 4), b=conv(4, 8), c=conv(12, 2))


@shape(IMAGE)
def bilinear():
    def forward(m, x):
        y = F.interpolate(F.relu(m.a(x)), scale_factor=2.0, mode="bilinear", align_corners=False)
        return m.b(y)

    return Net(forward, a=conv(3, 4), b=conv(4, 2))


@shape(IMAGE)
def pixel_shuffle():
    return nn.Sequential(conv(3, 8), nn.ReLU(), nn.PixelShuffle(2), conv(2, 2))


@shape(IMAGE)
def channel_shuffle():
    def forward(m, x):
        a, b = m.stem(x).chunk(2, 1)
        y = torch.cat([a, F.relu(m.branch(b))], 1)
        n, c, h, w = y.shape
        return m.head(y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w))

    return Net(forward, stem=conv(3, 8), branch=conv(4, 4), head=head(8))


@shape(IMAGE)
def odd_activations():
    return nn.Sequential(
        *(conv(3, 6), nn.LeakyReLU(0.1), conv(6, 6), nn.PReLU(6), conv(6, 6), nn.Hardswish()),
        head(6),
    )


@shape(IMAGE)
def group_norm():
    return nn.Sequential(
        conv(3, 8), nn.GroupNorm(2, 8), nn.ReLU(), conv(8, 8), nn.InstanceNorm2d(8), head(8)
    )


@shape(ROW)
def called_twice():
    return Net(
        lambda m, x: m.b(F.relu(m.a(F.relu(m.a(x))))), a=nn.Linear(12, 12), b=nn.Linear(12, 4)
    )


@shape(ROW)
def tied():
    def forward(m, x):
        return F.relu(m.a(x)) @ m.a.weight + m.b(x)

    return Net(forward, a=nn.Linear(12, 16), b=nn.Linear(12, 12))


@shape(pairs(12))
def two_inputs():
    def forward(m, x, y):
        return m.c(F.relu(m.a(x) + m.b(y)))

    return Net2(forward, a=nn.Linear(12, 16), b=nn.Linear(12, 16), c=nn.Linear(16, 4))


@shape(ROW)
def two_outputs():
    def forward(m, x):
        x = F.relu(m.a(x))
        return {"first": m.b(x), "second": m.c(x).sigmoid()}

    return Net(forward, a=nn.Linear(12, 16), b=nn.Linear(16, 4), c=nn.Linear(16, 2))


@shape(SEQUENCE)
def attention():
    def forward(m, x):
        q, k, v = (layer(x).view(len(x), 6, 2, 8).transpose(1, 2) for layer in (m.q, m.k, m.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), 6, 16)
        return m.o(y) + x

    return Net(forward, **{name: nn.Linear(16, 16) for name in "qkvo"})


@shape(SEQUENCE)
def multihead():
    def forward(m, x):
        return m.out(m.attention(x, x, x, need_weights=False)[0])

    return Net(
        forward, attention=nn.MultiheadAttention(16, 2, batch_first=True), out=nn.Linear(16, 4)
    )


@shape(SEQUENCE)
def encoder_layer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return Net(lambda m, x: m.head(m.layer(x).mean(1)), layer=layer, head=nn.Linear(16, 4))


@shape(SEQUENCE)
def lstm():
    def forward(m, x):
        return m.head(m.lstm(x)[0][:, -1])

    return Net(forward, lstm=nn.LSTM(16, 12, batch_first=True), head=nn.Linear(12, 4))


@shape(SEQUENCE)
def gru():
    return Net(
        lambda m, x: m.head(m.gru(x)[0]),
        gru=nn.GRU(16, 12, batch_first=True),
        head=nn.Linear(12, 4),
    )


@shape(tokens)
def embedding():
    def forward(m, ids):
        return m.head(F.relu(m.hidden(m.table(ids).mean(1))))

    return Net(forward, table=nn.Embedding(30, 16), hidden=nn.Linear(16, 16), head=nn.Linear(16, 4))


@shape(SEQUENCE)
def mixer():
    def forward(m, x):
        x = x + m.tokens(x.transpose(1, 2)).transpose(1, 2)
        return torch.einsum("nsc,co->nso", x, m.channels.weight.t())

    return Net(forward, tokens=nn.Linear(6, 6), channels=nn.Linear(16, 8, bias=False))


@shape(IMAGE)
def dead_and_large_filters():
    model = nn.Sequential(
        OrderedDict(a=conv(3, 8), bn=nn.BatchNorm2d(8), relu=nn.ReLU6(), b=conv(8, 8), head=head(8))
    )
    with torch.no_grad():
        model.a.weight[2] *= 1e-9
        model.a.weight[3] = 0
        model.bn.weight[4] *= -30
        model.bn.bias[2] = 0.5
    return model
