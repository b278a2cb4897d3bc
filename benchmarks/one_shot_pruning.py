"""Measure the accuracy lost when single weights are removed at once, without training.

    ./run python benchmarks/one_shot_pruning.py                      # trains ResNet-20 first: 7 CPU minutes
    ./run python benchmarks/one_shot_pruning.py --sparsity 0.9 0.95

A ResNet-20 (16, 32, 64 channels; its first convolution has stride 2) on Fashion-MNIST is pruned by magnitude,
by magnitude with its batch norms re-estimated against the original, and by SecondOrderPruner; the last two
use 1,000 training images without labels. Accuracy is on all test images; half of them were used
when the solver and the distribution of a total sparsity were chosen, but no setting was fitted to them.
The trained network is kept in the data cache.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from archives import cache_folder
from data import fashion_mnist
from networks import resnet
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from lilliput.torch import LAMPPruner, LevelPruner, SecondOrderPruner, recalibrate

EPOCHS, BATCH, SEEN = 8, 128, 1000


def normalized(images: Tensor) -> Tensor:
    return (images.float() / 255 - 0.2860) / 0.3530


def build() -> nn.Sequential:
    model = resnet((3, 3, 3), 1, width=16, classes=10, small=True)
    model[0] = nn.Conv2d(1, 16, 3, 2, 1, bias=False)
    return model


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    steps = EPOCHS * (len(x) // BATCH)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            flip = torch.rand(BATCH, 1, 1, 1) < 0.5
            images = torch.where(flip, x[part].flip(3), x[part])
            optimizer.zero_grad()
            F.cross_entropy(model(images), y[part]).backward()
            optimizer.step()
            schedule.step()


def trained(path: Path, x: Tensor, y: Tensor) -> nn.Module:
    """Return the trained network, from the cache if an earlier run has trained it."""
    torch.manual_seed(0)
    model = build()
    if not path.is_file():
        train(model, x, y)
        path.parent.mkdir(exist_ok=True)
        save_file(model.state_dict(), path)
    model.load_state_dict(load_file(path))
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    right = sum(
        int((model(a).argmax(1) == b).sum())
        for a, b in zip(x.split(500), y.split(500), strict=True)
    )
    return 100 * right / len(x)


def magnitude(pruner: type) -> Callable[..., nn.Module]:
    return lambda model, rules, *_: pruner(model, rules).compress()


def recalibrated(pruner: type) -> Callable[..., nn.Module]:
    def prune(model: nn.Module, rules: Any, batches: Any, original: nn.Module) -> nn.Module:
        model = pruner(model, rules).compress()
        recalibrate(model, batches, original=original)
        return model

    return prune


def second_order(model: nn.Module, rules: Any, batches: Any, original: nn.Module) -> nn.Module:
    pruner = SecondOrderPruner(model, rules)
    pruner.calibrate(batches)
    return pruner.compress()


WAYS: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "magnitude": ("sparsity", magnitude(LevelPruner)),
    "magnitude, norms re-estimated": ("sparsity", recalibrated(LevelPruner)),
    "second order": ("sparsity", second_order),
    "magnitude, all layers together": ("total_sparsity", magnitude(LevelPruner)),
    "the same, norms re-estimated": ("total_sparsity", recalibrated(LevelPruner)),
    "LAMP, norms re-estimated": ("total_sparsity", recalibrated(LAMPPruner)),
    "second order, all layers together": ("total_sparsity", second_order),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    options = parser.parse_args()
    (x, y), (test_x, test_y) = fashion_mnist()
    x, test_x = normalized(x), normalized(test_x)
    model = trained(cache_folder() / "checkpoints" / "fashion_resnet20.safetensors", x, y)
    batches = list(x[:SEEN].split(100))
    print(f"dense: {accuracy(model, test_x, test_y):.2f} %")
    for title, (key, prune) in WAYS.items():
        cells = []
        for sparsity in options.sparsity:
            start = time.process_time()
            rules = [{"op_types": ["Conv2d", "Linear"], key: sparsity}]
            pruned = prune(copy.deepcopy(model), rules, batches, model)
            seconds = time.process_time() - start
            cells.append(f"{accuracy(pruned, test_x, test_y):.2f} % ({seconds:.1f} s)")
        print(f"{title:<34} {' | '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
