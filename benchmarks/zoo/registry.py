"""The list of models, and random values for everything that initialisation leaves at 0 or 1."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = tuple[Any, ...] | dict[str, Any]
ZOO: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry:
    """One model: ``build()`` returns it in eval mode, ``inputs()`` the example (batch 2)."""

    name: str
    factory: Callable[[], nn.Module]
    make_inputs: Callable[[], Inputs]
    family: str

    def build(self) -> nn.Module:
        torch.manual_seed(zlib.crc32(self.name.encode()))
        model = self.factory()
        randomise(model)
        return model.eval()

    def inputs(self) -> Inputs:
        torch.manual_seed(zlib.crc32(self.name.encode()) + 1)
        return self.make_inputs()


def add(name: str, factory: Callable[[], nn.Module], inputs: Callable[[], Inputs]) -> None:
    if name in ZOO:
        raise ValueError(f"the zoo already has {name!r}")
    family = "transformers" if factory.__module__.startswith("zoo.hf") else "own"
    ZOO[name] = Entry(name, factory, inputs, family)


def model(name: str, inputs: Callable[[], Inputs]) -> Callable[[Any], Any]:
    """Register a model class or a function that returns a model."""

    def register(factory: Any) -> Any:
        add(name, factory, inputs)
        return factory

    return register


def randomise(model: nn.Module) -> None:
    """Give every parameter and every running statistic a value that shows in the output.

    A bias of 0, a gain of 1 or a layer scale of 1e-6 would hide that it was sliced wrongly.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if parameter.dim() == 1 and ("bias" in leaf or leaf == "beta"):
                parameter.normal_(0, 0.3)
            elif parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1 and parameter.shape[0] == 1:
                parameter.normal_(0, 0.5)
            elif parameter.dim() > 1:
                parameter.normal_(0, 1.2 * (parameter.shape[0] / parameter.numel()) ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def images(
    size: int = 32, channels: int = 3, height: int | None = None
) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(2, channels, height or size, size),)


def features(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(2, *shape),)


def tokens(length: int, vocabulary: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(vocabulary, (2, length)),)
