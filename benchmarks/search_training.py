"""Data and training of the networks of search_accuracy.py, by the steps of papers/training.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from papers.datasets import load
from papers.training import normalised, precision, scaled, shift_and_flip
from safetensors.torch import load_file
from torch import Tensor, nn

BATCH = 128
SHIFTS = {"cifar-10": 4, "fashion-mnist": 2}  # pixels


class Data:
    """Images of a data set, normalised; shifted and flipped at random for training.

    Parameters
    ----------
    name : str
        ``cifar-10`` or ``fashion-mnist``.
    images : int, optional
        How many images to train with, and a fifth of that to test; by default all.
    """

    def __init__(self, name: str, images: int | None = None) -> None:
        held, few = load(name), None if images is None else images // 5
        self.name, self.shift = name, SHIFTS[name]
        self.images, self.labels = (torch.from_numpy(x)[:images] for x in held.train)
        self.valid = normalised(*held.valid, name)
        self.test = normalised(held.test[0][:few], held.test[1][:few], name)

    def normalised(self, images: Tensor) -> Tensor:
        """Return images of bytes as floats."""
        return scaled(images, self.name)

    @property
    def steps(self) -> int:
        return len(self.labels) // BATCH

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all images once, in random order."""
        for chosen in torch.randperm(len(self.labels), generator=generator).split(BATCH):
            if len(chosen) == BATCH:
                x = self.normalised(self.images[chosen])
                yield shift_and_flip(x, self.shift, generator), self.labels[chosen]


def train(
    model: nn.Module, data: Data, epochs: int, rate: float, warm_up: float, seed: int
) -> None:
    """Train with SGD and a one-cycle schedule, in bfloat16 with weights in float."""
    generator, forward_precision = torch.Generator().manual_seed(seed), precision(model)
    optimizer = torch.optim.SGD(
        model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, epochs * data.steps, pct_start=warm_up, cycle_momentum=False
    )
    for epoch in range(epochs):
        model.train()
        for x, y in data.batches(generator):
            optimizer.zero_grad()
            with forward_precision:
                outputs = model(x)
            F.cross_entropy(outputs.float(), y).backward()
            optimizer.step()
            schedule.step()
        print(f"  epoch {epoch + 1} of {epochs}: {accuracy(model, data.valid):.2%}", flush=True)
    model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@torch.no_grad()
def accuracy(model: nn.Module, part: tuple[Tensor, Tensor], batch: int = 250) -> float:
    """Return the share of images of the right class."""
    model.eval()
    pairs = zip(part[0].split(batch), part[1].split(batch), strict=True)
    hits = [int((model(x).argmax(1) == y).sum()) for x, y in pairs]
    return sum(hits) / len(part[1])


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict that was saved by torch, or a safetensors file of papers/harness.py."""
    found = load_file(path) if path.suffix == ".safetensors" else torch.load(path)
    found.pop("cpu_seconds", None)
    model.load_state_dict(found)
