"""ShuffleNet V2, which hands half of its channels on from unit to unit and shuffles them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.registry import images, model


def shuffle(x: Tensor, groups: int = 2) -> Tensor:
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width)
    return x.transpose(1, 2).contiguous().view(batch, channels, height, width)


def pointwise(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]


def depthwise(channels: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
    return [conv, nn.BatchNorm2d(channels)]


class Unit(nn.Module):
    """Half of the channels pass, the others are convolved; or both ways halve the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.stride = stride
        self.pass_on = nn.Sequential()
        if stride > 1:
            self.pass_on = nn.Sequential(*depthwise(inputs, stride), *pointwise(inputs, half))
        self.convolve = nn.Sequential(
            *pointwise(inputs if stride > 1 else half, half),
            *depthwise(half, stride),
            *pointwise(half, half),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x, x) if self.stride > 1 else x.chunk(2, dim=1)
        return shuffle(torch.cat([self.pass_on(left), self.convolve(right)], dim=1))


class ShuffleNetV2(nn.Module):
    """Ma et al. 2018; the defaults are its width 1.0, with 2,278,604 parameters."""

    def __init__(
        self,
        repeats: tuple[int, ...] = (4, 8, 4),
        widths: tuple[int, ...] = (24, 116, 232, 464, 1024),
        classes: int = 1000,
    ) -> None:
        super().__init__()
        first, *middle, last = widths
        self.stem = nn.Sequential(
            nn.Conv2d(3, first, 3, 2, 1, bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1),
        )
        units, inputs = [], first
        for count, width in zip(repeats, middle, strict=True):
            for number in range(count):
                units.append(Unit(inputs, width, 2 if number == 0 else 1))
                inputs = width
        self.units = nn.Sequential(*units)
        self.last = nn.Sequential(*pointwise(inputs, last))
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.units(self.stem(x))).mean([2, 3]))


@model("shufflenet_v2_x1_0", images(64))
def shufflenet_v2_x1_0() -> nn.Module:
    return ShuffleNetV2()
