"""Image classifiers that chain, add and concatenate convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.registry import images, model


def conv_bn(
    width_in: int, width: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(width_in, width, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
    ]
    return nn.Sequential(*layers, nn.ReLU()) if act else nn.Sequential(*layers)


def pool_and_classify(width: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


@model("lenet", images(28, 1))
class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.view(x.size(0), -1))))


@model("vgg_bn", images())
def vgg_bn() -> nn.Module:
    layers: list[nn.Module] = []
    width_in = 3
    for width in (32, "pool", 48, "pool", 64, 64, "pool", 96, 96, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers.append(conv_bn(width_in, int(width)))
            width_in = int(width)
    head = [nn.Flatten(), nn.Linear(width_in * 4, 128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 10)]
    return nn.Sequential(*layers, *head)


class BasicBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(width_in, width, stride=stride), conv_bn(width, width, act=False)
        )
        self.shortcut = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = conv_bn(width_in, width, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Bottleneck(BasicBlock):
    groups = 1

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__(width_in, width, stride)
        inner = width // 2
        self.body = nn.Sequential(
            conv_bn(width_in, inner, 1),
            conv_bn(inner, inner, 3, stride, self.groups),
            conv_bn(inner, width, 1, act=False),
        )


class ResNeXtBlock(Bottleneck):
    groups = 4


class PreActBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(y))) + self.shortcut(x)


class GroupNormBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1)
        self.norm1 = nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)
        self.norm2 = nn.GroupNorm(8, width)
        self.shortcut = nn.Conv2d(width_in, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.silu(self.norm1(self.conv1(x)))))
        return F.silu(y + self.shortcut(x))


class PaddedShortcutBlock(nn.Module):
    """The shortcut of the CIFAR ResNets: every second pixel, and zeros as the new channels."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(width_in, width, stride=stride), conv_bn(width, width, act=False)
        )
        self.stride = stride
        self.missing = width - width_in

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]
        before = self.missing // 2
        shortcut = F.pad(shortcut, (0, 0, 0, 0, before, self.missing - before))
        return F.relu(self.body(x) + shortcut)


class SplitCascadeBlock(nn.Module):
    """Res2Net: the channels are split, and each part also sees the part before."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.part = width // 4
        self.reduce = conv_bn(width_in, width, 1, stride)
        self.convs = nn.ModuleList(conv_bn(self.part, self.part) for _ in range(3))
        self.expand = conv_bn(width, width, 1, act=False)
        self.shortcut = conv_bn(width_in, width, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        first, *others = torch.split(self.reduce(x), self.part, 1)
        parts = [first]
        previous = torch.zeros_like(first)
        for conv, part in zip(self.convs, others, strict=True):
            previous = conv(part + previous)
            parts.append(previous)
        return F.relu(self.expand(torch.cat(parts, 1)) + self.shortcut(x))


class RepVGGBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.wide = conv_bn(width_in, width, 3, stride, act=False)
        self.narrow = conv_bn(width_in, width, 1, stride, act=False)
        self.identity = nn.BatchNorm2d(width) if stride == 1 and width_in == width else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x) + self.narrow(x)
        if self.identity is not None:
            y = y + self.identity(x)
        return F.relu(y)


def staged(block: type[nn.Module], widths: tuple[int, ...] = (32, 48, 64, 96)) -> nn.Module:
    """Return a stem, two blocks per stage, and a classifier."""
    layers: list[nn.Module] = [conv_bn(3, widths[0])]
    width_in = widths[0]
    for index, width in enumerate(widths):
        layers += [block(width_in, width, 2 if index else 1), block(width, width, 1)]
        width_in = width
    return nn.Sequential(*layers, pool_and_classify(width_in))


@model("resnet18", images())
def resnet18() -> nn.Module:
    return staged(BasicBlock)


@model("resnet50", images())
def resnet50() -> nn.Module:
    return staged(Bottleneck)


@model("resnext", images())
def resnext() -> nn.Module:
    return staged(ResNeXtBlock)


@model("resnet_preact", images())
def resnet_preact() -> nn.Module:
    return staged(PreActBlock)


@model("resnet_groupnorm", images())
def resnet_groupnorm() -> nn.Module:
    return staged(GroupNormBlock)


@model("resnet_padded_shortcut", images())
def resnet_padded_shortcut() -> nn.Module:
    return staged(PaddedShortcutBlock)


@model("res2net", images())
def res2net() -> nn.Module:
    return staged(SplitCascadeBlock)


@model("repvgg", images())
def repvgg() -> nn.Module:
    return staged(RepVGGBlock)


class DenseLayer(nn.Module):
    def __init__(self, width_in: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(width_in),
            nn.ReLU(),
            nn.Conv2d(width_in, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


@model("densenet", images())
def densenet() -> nn.Module:
    width, growth = 24, 12
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    for stage in range(3):
        for _ in range(4):
            layers.append(DenseLayer(width, growth))
            width += growth
        if stage < 2:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1)]
            layers.append(nn.AvgPool2d(2))
            width //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), pool_and_classify(width))


class InceptionBlock(nn.Module):
    def __init__(self, width_in: int) -> None:
        super().__init__()
        self.one = conv_bn(width_in, 16, 1)
        self.three = nn.Sequential(conv_bn(width_in, 24, 1), conv_bn(24, 32))
        self.five = nn.Sequential(conv_bn(width_in, 8, 1), conv_bn(8, 16), conv_bn(16, 16))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(width_in, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


@model("inception", images())
def inception() -> nn.Module:
    blocks = [InceptionBlock(32), InceptionBlock(80), nn.MaxPool2d(2), InceptionBlock(80)]
    return nn.Sequential(conv_bn(3, 32, stride=2), *blocks, pool_and_classify(80))


class Fire(nn.Module):
    def __init__(self, width_in: int, squeezed: int, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(width_in, squeezed, 1)
        self.expand1 = nn.Conv2d(squeezed, width, 1)
        self.expand3 = nn.Conv2d(squeezed, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1(x)), F.relu(self.expand3(x))], 1)


@model("squeezenet", images())
def squeezenet() -> nn.Module:
    fires = [Fire(32, 8, 24), Fire(48, 8, 24), nn.MaxPool2d(2), Fire(48, 16, 32)]
    head = [nn.Dropout(), nn.Conv2d(64, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), *fires, *head)


@model("conv3d", lambda: (torch.randn(2, 3, 8, 16, 16),))
def conv3d() -> nn.Module:
    layers: list[nn.Module] = []
    for width_in, width in ((3, 16), (16, 32), (32, 48)):
        layers += [nn.Conv3d(width_in, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU()]
        layers.append(nn.MaxPool3d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 4, 10))
