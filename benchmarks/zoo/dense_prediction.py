"""Networks whose output is an image, several feature maps, or boxes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.convolutions import conv_bn, pool_and_classify
from zoo.registry import features, images, model


@model("unet_transposed", images())
class UNetTransposed(nn.Module):
    """The decoder doubles the size by transposed convolutions and concatenates the encoder's maps."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        self.downs, self.ups, self.merges = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        width_in = 3
        for width in widths:
            self.downs.append(nn.Sequential(conv_bn(width_in, width), conv_bn(width, width)))
            width_in = width
        for width in reversed(widths[:-1]):
            self.ups.append(nn.ConvTranspose2d(width_in, width, 2, 2))
            self.merges.append(nn.Sequential(conv_bn(2 * width, width), conv_bn(width, width)))
            width_in = width
        self.head = nn.Conv2d(width_in, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for down in self.downs:
            x = down(x if not maps else F.max_pool2d(x, 2))
            maps.append(x)
        for up, merge, skip in zip(self.ups, self.merges, reversed(maps[:-1]), strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.head(x)


@model("unet_bilinear", images())
class UNetBilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.enc3 = conv_bn(3, 16), conv_bn(16, 32), conv_bn(32, 64)
        self.up2, self.up1 = nn.Conv2d(64, 32, 1), nn.Conv2d(32, 16, 1)
        self.dec2, self.dec1 = conv_bn(64, 32), conv_bn(32, 16)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.enc1(x)
        two = self.enc2(F.max_pool2d(one, 2))
        x = self.enc3(F.max_pool2d(two, 2))
        for up, decode, skip in ((self.up2, self.dec2, two), (self.up1, self.dec1, one)):
            x = F.interpolate(up(x), size=skip.shape[2:], mode="bilinear", align_corners=False)
            x = decode(torch.cat([skip, x], 1))
        return torch.sigmoid(self.head(x))


class CSPStage(nn.Module):
    """YOLO's C2f: split, run a chain of bottlenecks, concatenate all that came by."""

    def __init__(self, width_in: int, width: int, count: int = 2) -> None:
        super().__init__()
        self.half = width // 2
        self.first = conv_bn(width_in, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_bn(self.half, self.half), conv_bn(self.half, self.half))
            for _ in range(count)
        )
        self.last = conv_bn((2 + count) * self.half, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).split((self.half, self.half), 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class SPPF(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = conv_bn(width, width // 2, 1)
        self.last = conv_bn(2 * width, width, 1)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


@model("yolo", images(64))
class Yolo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 16, 3, 2), conv_bn(16, 32, 3, 2), CSPStage(32, 32))
        self.middle = nn.Sequential(conv_bn(32, 48, 3, 2), CSPStage(48, 48))
        self.deep = nn.Sequential(conv_bn(48, 64, 3, 2), CSPStage(64, 64), SPPF(64))
        self.merge = CSPStage(64 + 48, 48)
        self.down = conv_bn(48, 48, 3, 2)
        self.merge_deep = CSPStage(64 + 48, 64)
        self.heads = nn.ModuleList([nn.Conv2d(48, 3 * 9, 1), nn.Conv2d(64, 3 * 9, 1)])

    def forward(self, x: Tensor) -> Tensor:
        middle = self.middle(self.stem(x))
        deep = self.deep(middle)
        middle = self.merge(torch.cat([F.interpolate(deep, scale_factor=2.0), middle], 1))
        deep = self.merge_deep(torch.cat([self.down(middle), deep], 1))
        boxes = [
            head(x).view(x.shape[0], 3, 9, -1).permute(0, 1, 3, 2).flatten(1, 2)
            for head, x in zip(self.heads, (middle, deep), strict=True)
        ]
        return torch.cat(boxes, 1)


class Hourglass(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.skip = conv_bn(width, width)
        self.down = conv_bn(width, width, 3, 2)
        self.inner = Hourglass(depth - 1, width) if depth > 1 else conv_bn(width, width)
        self.up = conv_bn(width, width)

    def forward(self, x: Tensor) -> Tensor:
        deep = self.up(self.inner(self.down(x)))
        return self.skip(x) + F.interpolate(deep, scale_factor=2.0, mode="nearest")


@model("hourglass", images())
class StackedHourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 32, 3, 2)
        self.glasses = nn.ModuleList(Hourglass(2, 32) for _ in range(2))
        self.heads = nn.ModuleList(nn.Conv2d(32, 5, 1) for _ in range(2))
        self.back = nn.Conv2d(5, 32, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        first = self.glasses[0](x)
        heat = self.heads[0](first)
        x = x + first + self.back(heat)
        return [heat, self.heads[1](self.glasses[1](x))]


@model("fpn", images(64))
class FeaturePyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (24, 48, 96)
        pairs = ((3, 24), (24, 48), (48, 96))
        self.stages = nn.ModuleList(conv_bn(a, b, 3, 2) for a, b in pairs)
        self.laterals = nn.ModuleList(nn.Conv2d(width, 32, 1) for width in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in widths)
        self.head = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 6, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        maps = [lateral(x) for lateral, x in zip(self.laterals, maps, strict=True)]
        for index in (1, 0):
            maps[index] = maps[index] + F.interpolate(maps[index + 1], scale_factor=2.0)
        smooth = [conv(x) for conv, x in zip(self.smooth, maps, strict=True)]
        return {f"level{index}": self.head(x) for index, x in enumerate(smooth)}


@model("aspp", images())
class AtrousPyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 32, 3, 2), conv_bn(32, 48, 3, 2))
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(48, 24, 3, padding=rate, dilation=rate, bias=False),
                nn.BatchNorm2d(24),
                nn.ReLU(),
            )
            for rate in (1, 2, 4)
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(48, 24, 1), nn.ReLU())
        self.merge = conv_bn(96, 48, 1)
        self.head = nn.Conv2d(48, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        x = self.stem(x)
        pooled = self.pooled(x).expand(-1, -1, *x.shape[2:])
        x = self.merge(torch.cat([*(branch(x) for branch in self.branches), pooled], 1))
        return F.interpolate(self.head(x), size=size, mode="bilinear", align_corners=False)


class StyleResidual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3)]
            layers += [nn.InstanceNorm2d(width, affine=True), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


@model("style_transfer", images())
def style_transfer() -> nn.Module:
    return nn.Sequential(
        nn.ReflectionPad2d(4),
        nn.Conv2d(3, 16, 9),
        nn.InstanceNorm2d(16, affine=True),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.InstanceNorm2d(32),
        nn.ReLU(),
        StyleResidual(32),
        StyleResidual(32),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(32, 16, 3, padding=1),
        nn.InstanceNorm2d(16, affine=True),
        nn.ReLU(),
        nn.Conv2d(16, 3, 9, padding=4),
        nn.Tanh(),
    )


@model("super_resolution", images(16))
class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.PReLU(32), nn.Conv2d(32, 32, 1))
            for _ in range(2)
        )
        self.up = nn.Sequential(nn.Conv2d(32, 96, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())
        self.last = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        y = first = self.first(x)
        for block in self.blocks:
            y = y + 0.1 * block(y)
        y = self.last(self.up(y + first))
        return y + F.interpolate(x, scale_factor=4.0, mode="bicubic")


@model("autoencoder", images(16, 1))
class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.to_code = nn.Linear(32 * 16, 24)
        self.from_code = nn.Linear(24, 32 * 16)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.to_code(self.encoder(x))
        return self.decoder(F.relu(self.from_code(code)).view(-1, 32, 4, 4)), code


@model("dcgan_generator", features(24, 1, 1))
def dcgan_generator() -> nn.Module:
    layers: list[nn.Module] = [nn.ConvTranspose2d(24, 64, 4, bias=False)]
    for width_in, width in ((64, 32), (32, 16)):
        layers += [nn.BatchNorm2d(width_in), nn.ReLU()]
        layers.append(nn.ConvTranspose2d(width_in, width, 4, 2, 1, bias=False))
    layers += [nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1)]
    return nn.Sequential(*layers, nn.Tanh())


@model("siamese", lambda: (torch.randn(2, 3, 32, 32), torch.randn(2, 3, 32, 32)))
class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(conv_bn(3, 24, 3, 2), conv_bn(24, 48, 3, 2))
        self.project = pool_and_classify(48, 32)
        self.score = nn.Linear(64, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = self.project(self.tower(left)), self.project(self.tower(right))
        return self.score(torch.cat([(left - right).abs(), left * right], -1))


@model("multi_head", images())
class MultiHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(3, 32, 3, 2), conv_bn(32, 64, 3, 2))
        self.heads = nn.ModuleDict(
            {"kind": pool_and_classify(64, 7), "mask": nn.Conv2d(64, 1, 1), "age": nn.Linear(64, 1)}
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(x)
        inputs = {"kind": x, "mask": x, "age": x.flatten(2).mean(-1)}
        return {name: head(inputs[name]) for name, head in self.heads.items()}
