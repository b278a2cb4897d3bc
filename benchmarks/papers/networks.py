"""The networks of the papers, on MNIST and CIFAR-10."""

from __future__ import annotations

from functools import partial

from networks import resnet
from torch import nn


def lenet_300_100() -> nn.Sequential:
    """Return LeCun's network of 1998 with hidden layers of 300 and 100: 266,200 weights."""
    hidden = (nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(100, 10))


def glorot_lenet_300_100() -> nn.Sequential:
    """Return the same network with first weights by Glorot & Bengio 2010, larger than those of PyTorch."""
    model = lenet_300_100()
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def lenet_5(
    first: int = 20, second: int = 50, hidden: int = 500, rectified: bool = False
) -> nn.Sequential:
    """Return LeNet-5 as Caffe has it, which the papers prune: 430,500 weights, or fewer channels.

    Variational dropout was tried on a ``rectified`` one, with a ReLU after each convolution.
    """
    convolutions = (nn.Conv2d(1, first, 5), nn.Conv2d(first, second, 5))
    features: list[nn.Module] = []
    for conv in convolutions:
        features += [conv, *([nn.ReLU()] if rectified else []), nn.MaxPool2d(2)]
    head = (nn.Linear(16 * second, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    return nn.Sequential(*features, nn.Flatten(), *head)


def normed_mlp() -> nn.Sequential:
    """Return a network of 784-500-300-10 with batch norms, whose scales Slim prunes by."""
    first = (nn.Linear(784, 500), nn.BatchNorm1d(500), nn.ReLU())
    second = (nn.Linear(500, 300), nn.BatchNorm1d(300), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(300, 10))


def resnet_20() -> nn.Sequential:
    """Return He's ResNet of 20 layers for images of 32×32 pixels: 270,000 weights."""
    return resnet((3, 3, 3), 1, width=16, classes=10, small=True)


NETWORKS = {
    "lenet-300-100": lenet_300_100,
    "glorot-lenet-300-100": glorot_lenet_300_100,
    "lenet-5": lenet_5,
    "rectified-lenet-5": partial(lenet_5, rectified=True),
    "normed-mlp": normed_mlp,
    "resnet-20": resnet_20,
}
ONE_DENSE = {"resnet-20"}  # trained once: seeds differ in what follows
