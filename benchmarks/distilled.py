"""Train a pruned digits network with labels, with its teacher, or with both, for the same number of steps.

    ./run python benchmarks/distilled.py        # two minutes

64-128-64-10 on scikit-learn's digits, trained to 96 %; a share of the weights is removed at once, then Adam
makes some steps of 32 images. Reported is the final accuracy on 450 other digits, the mean of five seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilliput.demo import Digits
from lilliput.torch import Distiller, LevelPruner

SEEDS = 5
CASES = [(0.8, 300, 50), (0.9, 400, 300), (0.95, 400, 1347)]  # sparsity, steps, images
KINDS = {"labels": None, "labels, T = 2": 2.0, "T = 1": 1.0, "T = 2": 2.0, "T = 4": 4.0}

DATA = Digits()
IMAGES, LABELS = DATA.train.tensors


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(DATA.test[0].flatten(1)).argmax(1) == DATA.test[1]).double().mean())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    count: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(count, (32,), generator=generator)
        optimizer.zero_grad()
        loss(model(IMAGES[rows].flatten(1)), LABELS[rows]).backward()
        optimizer.step()


def trained(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    hidden = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Linear(64, 10))
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    train(model, adam, 400, len(IMAGES), F.cross_entropy)
    return model


def retrained(original: nn.Module, kind: str, sparsity: float, steps: int, count: int) -> float:
    model, temperature = copy.deepcopy(original), KINDS[kind]
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    distiller = Distiller(model, [{"temperature": temperature or 1.0}], adam)
    if temperature is not None:
        distiller.compress()
    LevelPruner(model, [{"sparsity": sparsity}], adam).compress()

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        task = F.cross_entropy(logits, labels) * ("labels" in kind)
        return task if temperature is None else task + distiller.loss()

    train(model, adam, steps, count, loss)
    return accuracy(model)


def main() -> None:
    torch.set_num_threads(1)
    originals = [trained(seed) for seed in range(SEEDS)]
    print(f"original: {sum(map(accuracy, originals)) / SEEDS:.1%}")
    print("removed, steps, images |", " | ".join(KINDS))
    for case in CASES:
        means = [sum(retrained(x, kind, *case) for x in originals) / SEEDS for kind in KINDS]
        print(
            f"{case[0]:.0%}, {case[1]}, {case[2]} |",
            " | ".join(f"{m:.1%}" for m in means),
            flush=True,
        )


if __name__ == "__main__":
    main()
