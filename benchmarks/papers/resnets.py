"""The residual network of He et al. (2016) for CIFAR-10, with projections as shortcuts."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is a 1×1 convolution where the size changes."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if width_in != width:
            conv = nn.Conv2d(width_in, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet_20() -> nn.Sequential:
    """Return ResNet-20 for colour images of 32×32 pixels: 0.27 million parameters, 41 million MACs."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False)]
    layers += [nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()]
    width_in = WIDTHS[0]
    for width in WIDTHS:
        for _ in range(3):
            layers.append(Block(width_in, width, 1 if width == width_in else 2))
            width_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, 10))
