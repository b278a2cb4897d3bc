"""The networks of the quantization benchmarks, defined here so that nothing needs downloading.

    model, example = make("resnet18")

Standard architectures with Gaussian weights from a seed; the statistics of batch norm are those of
random data. Trained networks, whose weights are harder to quantize, are in trained_nets.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_norm(width_in: int, width: int, size: int, stride: int = 1, groups: int = 1) -> list:
    """Return a convolution without bias and its batch norm."""
    conv = nn.Conv2d(width_in, width, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(width)]


class Residual(nn.Module):
    """Two 3×3 convolutions, or a 3×3 between two 1×1 ("bottleneck"), and a shortcut around them."""

    def __init__(self, width_in: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        out = width * expansion
        if expansion == 1:
            first = [*conv_norm(width_in, width, 3, stride), nn.ReLU()]
            self.body = nn.Sequential(*first, *conv_norm(width, out, 3))
        else:
            first = [*conv_norm(width_in, width, 1), nn.ReLU()]
            second = [*conv_norm(width, width, 3, stride), nn.ReLU()]
            self.body = nn.Sequential(*first, *second, *conv_norm(width, out, 1))
        same = stride == 1 and width_in == out
        self.shortcut = nn.Sequential(*([] if same else conv_norm(width_in, out, 1, stride)))
        self.relu = nn.ReLU()
        self.adds = True

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def resnet(
    depths: tuple[int, ...],
    expansion: int,
    width: int = 64,
    classes: int = 1000,
    small: bool = False,
) -> nn.Sequential:
    """Return a ResNet; ``small`` ones, for 32×32 images, have no pooling and a 3×3 stem."""
    stem = conv_norm(3, width, 3) if small else conv_norm(3, width, 7, 2)
    layers = [*stem, nn.ReLU(), *([] if small else [nn.MaxPool2d(3, 2, 1)])]
    width_in = width
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(Residual(width_in, width << stage, stride, expansion))
            width_in = (width << stage) * expansion
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, classes)]
    return nn.Sequential(*layers, *head)


class InvertedResidual(nn.Module):
    """Widen with 1×1, filter each channel with 3×3, narrow with 1×1; add the input if shapes match."""

    def __init__(self, width_in: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = width_in * expansion
        layers = [*conv_norm(width_in, inner, 1), nn.ReLU6()] if expansion > 1 else []
        layers += [*conv_norm(inner, inner, 3, stride, groups=inner), nn.ReLU6()]
        self.body = nn.Sequential(*layers, *conv_norm(inner, width, 1))
        self.adds = stride == 1 and width_in == width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet_v2(classes: int = 1000) -> nn.Sequential:
    layers = [*conv_norm(3, 32, 3, 2), nn.ReLU6()]
    width_in = 32
    for expansion, width, depth, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for index in range(depth):
            layers.append(InvertedResidual(width_in, width, 1 if index else stride, expansion))
            width_in = width
    layers += [*conv_norm(width_in, 1280, 1), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes))


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            layer(x).reshape(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, hidden))


class EncoderLayer(nn.Module):
    """A layer of BERT: attention and a feed-forward part, each added and then normalized."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.norm1 = nn.LayerNorm(hidden)
        self.widen = nn.Linear(hidden, inner)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(inner, hidden)
        self.norm2 = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.narrow(self.gelu(self.widen(x))))


def encoder(hidden: int, heads: int, inner: int, layers: int) -> nn.Sequential:
    """Return an encoder of embedded tokens, without dropout."""
    return nn.Sequential(*(EncoderLayer(hidden, heads, inner) for _ in range(layers)))


def set_gaussian_weights(model: nn.Module, seed: int = 0) -> None:
    """Draw new weights: trained weights look Gaussian, torch's uniform ones do not.

    What a block adds to its shortcut is small, also as in trained networks, so that noise does not grow.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, generator=generator)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
            nn.init.normal_(module.bias, std=0.02, generator=generator)
        elif isinstance(module, (Residual, InvertedResidual)) and module.adds:
            nn.init.constant_(module.body[-1].weight, 0.25)


@torch.no_grad()
def estimate_statistics(model: nn.Module, example: Tensor, batch: int = 16) -> None:
    """Set the running statistics of batch norm to those of a random batch."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        model.train()(random_inputs(example, 1, batch, seed=1)[0])
    for norm in norms:
        norm.momentum = 0.1


def random_inputs(example: Tensor, count: int, batch: int = 1, seed: int = 0) -> list[Tensor]:
    """Return batches of random inputs of the example's shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, *example.shape[1:], generator=generator) for _ in range(count)]


IMAGE, TOKENS = (3, 224, 224), (128, 384)
NETWORKS = {
    "resnet18": (lambda: resnet((2, 2, 2, 2), expansion=1), IMAGE),
    "resnet50": (lambda: resnet((3, 4, 6, 3), expansion=4), IMAGE),
    "mobilenet_v2": (mobilenet_v2, IMAGE),
    "encoder": (lambda: encoder(hidden=384, heads=12, inner=1536, layers=6), TOKENS),
}


def make(name: str) -> tuple[nn.Module, Tensor]:
    """Return a network in evaluation mode and an input of batch 1."""
    build, shape = NETWORKS[name]
    model = build()
    set_gaussian_weights(model)
    example = torch.randn(1, *shape, generator=torch.Generator().manual_seed(2))
    estimate_statistics(model, example)
    return model.eval(), example
