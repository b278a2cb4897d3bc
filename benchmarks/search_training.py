"""Data and training of the networks of search_accuracy.py: bfloat16 where that is precise enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from papers.datasets import load
from safetensors.torch import load_file
from torch import Tensor, nn

BATCH = 128
FRAME = {"cifar-10": 4, "fashion-mnist": 2}  # pixels by which training images are shifted


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
        held = load(name)
        self.frame, self.images = FRAME[name], torch.from_numpy(held.train[0])[:images]
        self.labels = torch.from_numpy(held.train[1])[:images]
        pixels = self.images[:5000].double() / 255
        self.mean = pixels.mean((0, 2, 3)).float().view(1, -1, 1, 1)
        self.deviation = pixels.std((0, 2, 3)).float().view(1, -1, 1, 1)
        self.valid = self.prepared(held.valid)
        few = None if images is None else images // 5
        self.test = self.prepared((held.test[0][:few], held.test[1][:few]))
        pad = (self.frame,) * 4
        self.padded = F.pad(self.images, pad)  # black

    def prepared(self, part: tuple[np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor]:
        return self.normalised(torch.from_numpy(part[0])), torch.from_numpy(part[1])

    def normalised(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.deviation

    @property
    def steps(self) -> int:
        return len(self.labels) // BATCH

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all images once, in random order."""
        side = torch.arange(self.images.shape[-1])
        for chosen in torch.randperm(len(self.labels), generator=generator).split(BATCH):
            if len(chosen) < BATCH:
                return
            top, left = torch.randint(2 * self.frame + 1, (2, BATCH, 1), generator=generator)
            is_flipped = torch.rand(BATCH, 1, generator=generator) < 0.5
            columns = left + torch.where(is_flipped, side.flip(0), side)
            rows = (top + side)[:, :, None]
            x = self.padded[chosen[:, None, None], :, rows, columns[:, None]]  # channels last
            yield self.normalised(x.permute(0, 3, 1, 2)), self.labels[chosen]


def train(
    model: nn.Module, data: Data, epochs: int, rate: float, warm_up: float, seed: int
) -> None:
    """Train with SGD and a one-cycle schedule, in bfloat16 with weights in float."""
    generator = torch.Generator().manual_seed(seed)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
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
            with torch.autocast("cpu", torch.bfloat16):
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
