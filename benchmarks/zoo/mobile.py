"""Networks for small devices: depthwise convolutions, squeeze and excite, splits and shuffles."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.convolutions import conv_bn, pool_and_classify
from zoo.registry import images, model


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, gate: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, max(8, width // 4), 1)
        self.expand = nn.Conv2d(max(8, width // 4), width, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        scale = F.relu(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * self.gate(self.expand(scale))


class InvertedResidual(nn.Module):
    def __init__(
        self,
        width_in: int,
        width: int,
        stride: int,
        act: type[nn.Module] = nn.ReLU6,
        gate: type[nn.Module] | None = None,
        kernel: int = 3,
    ) -> None:
        super().__init__()
        inner = 3 * width_in
        self.expand = nn.Sequential(conv_bn(width_in, inner, 1, act=False), act())
        depthwise = conv_bn(inner, inner, kernel, stride, groups=inner, act=False)
        self.depthwise = nn.Sequential(depthwise, act())
        self.excite = SqueezeExcite(inner, gate) if gate else nn.Identity()
        self.project = conv_bn(inner, width, 1, act=False)
        self.residual = stride == 1 and width_in == width

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.excite(self.depthwise(self.expand(x))))
        return x + y if self.residual else y


def inverted(act: type[nn.Module], gate: type[nn.Module] | None, kernel: int = 3) -> nn.Module:
    layers: list[nn.Module] = [conv_bn(3, 16, 3, 2, act=False), act()]
    for width_in, width, stride in (
        (16, 24, 1),
        (24, 24, 1),
        (24, 40, 2),
        (40, 40, 1),
        (40, 64, 2),
    ):
        layers.append(InvertedResidual(width_in, width, stride, act, gate, kernel))
    layers += [conv_bn(64, 128, 1, act=False), act()]
    return nn.Sequential(*layers, pool_and_classify(128))


@model("mobilenet_v2", images())
def mobilenet_v2() -> nn.Module:
    return inverted(nn.ReLU6, None)


@model("mobilenet_v3", images())
def mobilenet_v3() -> nn.Module:
    return inverted(nn.Hardswish, nn.Hardsigmoid)


@model("efficientnet", images())
def efficientnet() -> nn.Module:
    return inverted(nn.SiLU, nn.Sigmoid, kernel=5)


class LinearSqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(width, 8, bias=False),
            nn.ReLU(),
            nn.Linear(8, width, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, _, _ = x.shape
        scale = F.adaptive_avg_pool2d(x, 1).view(batch, channels)
        return x * self.fc(scale).view(batch, channels, 1, 1)


@model("squeeze_excite", images())
def squeeze_excite() -> nn.Module:
    layers = [conv_bn(3, 32), LinearSqueezeExcite(32), conv_bn(32, 64), LinearSqueezeExcite(64)]
    return nn.Sequential(*layers, pool_and_classify(64))


class Ghost(nn.Module):
    """Half of the channels by a convolution, the other half by a cheap one from the first."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.primary = conv_bn(width_in, width // 2, 1)
        self.cheap = conv_bn(width // 2, width // 2, 3, groups=width // 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary(x)
        return torch.cat([x, self.cheap(x)], 1)


class GhostBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = Ghost(width, 2 * width)
        self.excite = SqueezeExcite(2 * width)
        self.shrink = Ghost(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shrink(self.excite(self.expand(x)))


@model("ghostnet", images())
def ghostnet() -> nn.Module:
    blocks = [GhostBlock(32), conv_bn(32, 48, 3, 2), GhostBlock(48), GhostBlock(48)]
    return nn.Sequential(conv_bn(3, 32, 3, 2), *blocks, pool_and_classify(48))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width).transpose(1, 2).contiguous()
    return x.view(batch, channels, height, width)


class ShuffleBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        depthwise = conv_bn(half, half, 3, groups=half, act=False)
        self.branch = nn.Sequential(conv_bn(half, half, 1), depthwise, conv_bn(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, 1)
        return channel_shuffle(torch.cat([kept, self.branch(changed)], 1), 2)


class ShuffleDown(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        half = width // 2
        left = conv_bn(width_in, width_in, 3, 2, groups=width_in, act=False)
        self.left = nn.Sequential(left, conv_bn(width_in, half, 1))
        right = conv_bn(half, half, 3, 2, groups=half, act=False)
        self.right = nn.Sequential(conv_bn(width_in, half, 1), right, conv_bn(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        return channel_shuffle(torch.cat([self.left(x), self.right(x)], 1), 2)


@model("shufflenet_v2", images())
def shufflenet_v2() -> nn.Module:
    body = [ShuffleDown(24, 48), ShuffleBlock(48), ShuffleDown(48, 96), ShuffleBlock(96)]
    return nn.Sequential(conv_bn(3, 24), *body, conv_bn(96, 128, 1), pool_and_classify(128))


class GroupShuffleBlock(nn.Module):
    """ShuffleNet v1: grouped 1×1 convolutions with a channel shuffle between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = conv_bn(width, width, 1, groups=4)
        self.middle = conv_bn(width, width, 3, groups=width, act=False)
        self.last = conv_bn(width, width, 1, groups=4, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.last(self.middle(channel_shuffle(self.first(x), 4))))


@model("shufflenet_v1", images())
def shufflenet_v1() -> nn.Module:
    blocks = [GroupShuffleBlock(48), nn.AvgPool2d(2), GroupShuffleBlock(48)]
    return nn.Sequential(conv_bn(3, 48, 3, 2), *blocks, pool_and_classify(48))


@model("depthwise_multiplier", images())
def depthwise_multiplier() -> nn.Module:
    """Each input channel of the depthwise convolution makes three output channels."""
    multiply = nn.Conv2d(24, 72, 3, padding=1, groups=24)
    layers = [conv_bn(3, 24, 3, 2), multiply, nn.BatchNorm2d(72), nn.ReLU(), conv_bn(72, 32, 1)]
    return nn.Sequential(*layers, pool_and_classify(32))


class CBAM(nn.Module):
    """Attention over channels, then over pixels from the mean and the maximum over channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width))
        self.conv = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sigmoid(self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3))))
        x = x * scale[:, :, None, None]
        pooled = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        return x * torch.sigmoid(self.conv(pooled))


@model("cbam", images())
def cbam() -> nn.Module:
    layers = [conv_bn(3, 32, 3, 2), CBAM(32), conv_bn(32, 64, 3, 2), CBAM(64)]
    return nn.Sequential(*layers, pool_and_classify(64))


class SelectiveKernel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([conv_bn(width, width, 3), conv_bn(width, width, 5)])
        self.reduce = nn.Linear(width, 16)
        self.select = nn.Linear(16, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        stacked = torch.stack([branch(x) for branch in self.branches], 1)
        summary = F.relu(self.reduce(stacked.sum(1).mean((2, 3))))
        weights = self.select(summary).view(x.shape[0], 2, x.shape[1]).softmax(1)
        return (stacked * weights[..., None, None]).sum(1)


@model("sknet", images())
def sknet() -> nn.Module:
    layers = [conv_bn(3, 32, 3, 2), SelectiveKernel(32), conv_bn(32, 48, 3, 2), SelectiveKernel(48)]
    return nn.Sequential(*layers, pool_and_classify(48))


@model("coordconv", images())
class CoordConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = conv_bn(5, 32, 3, 2)
        self.second = conv_bn(34, 48, 3, 2)
        self.head = pool_and_classify(48)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.with_places(x))
        return self.head(self.second(self.with_places(x)))

    def with_places(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        rows = torch.linspace(-1, 1, height, dtype=x.dtype).view(1, 1, -1, 1)
        columns = torch.linspace(-1, 1, width, dtype=x.dtype).view(1, 1, 1, -1)
        places = [axis.expand(batch, 1, height, width) for axis in (rows, columns)]
        return torch.cat([x, *places], 1)


class TemporalShift(nn.Module):
    def __init__(self, frames: int, share: int = 8) -> None:
        super().__init__()
        self.frames = frames
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        count, channels, height, width = x.shape
        x = x.view(count // self.frames, self.frames, channels, height, width)
        fold = channels // self.share
        out = torch.zeros_like(x)
        out[:, :-1, :fold] = x[:, 1:, :fold]
        out[:, 1:, fold : 2 * fold] = x[:, :-1, fold : 2 * fold]
        out[:, :, 2 * fold :] = x[:, :, 2 * fold :]
        return out.view(count, channels, height, width)


@model("temporal_shift", lambda: (torch.randn(2, 4, 3, 16, 16),))
class TSM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 32, 3, 2)
        self.body = nn.Sequential(TemporalShift(4), conv_bn(32, 48, 3, 2), TemporalShift(4))
        self.last = conv_bn(48, 48)
        self.head = pool_and_classify(48)

    def forward(self, video: Tensor) -> Tensor:
        batch, frames = video.shape[:2]
        x = self.head(self.last(self.body(self.stem(video.flatten(0, 1)))))
        return x.view(batch, frames, -1).mean(1)
