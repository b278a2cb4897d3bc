"""SmoothQuant: move outliers of activations into the weights, where they are easier to quantize.

Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
2023. Between a norm and the linear layers that read it, channel ``i`` is divided by
``s_i = max|x_i|^alpha / max|w_i|^(1 - alpha)`` in the norm, and multiplied again in the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.ptq.changes import Changes
from lilliput.frameworks.torch.ptq.trace import PlainLayer, Trace, in_float

_NAMES = ("LayerNorm", "RMSNorm")
_SMALLEST = 1e-5


@dataclass(frozen=True)
class Group:
    """A norm, and all the layers that read its output."""

    norm: nn.Module
    readers: tuple[PlainLayer, ...]

    @property
    def scaled(self) -> dict[str, nn.Parameter]:
        """The parameters that scale the norm's channels."""
        return {name: x for name, x in self.norm._parameters.items() if x is not None}


class Largest:
    """The largest magnitude of each channel over all batches."""

    def __init__(self) -> None:
        self.value: Any = 0.0

    def see(self, batch: int, inputs: Tensor, output: Tensor) -> None:
        """Add a batch."""
        found = output.detach().double().abs().flatten(0, -2).amax(0)
        self.value = torch.maximum(found, found.new_tensor(0.0) + self.value)


def find_groups(trace: Trace, layers: Sequence[PlainLayer]) -> list[Group]:
    """Return the norms whose output only quantized linear layers read."""
    groups = []
    for call in trace.flow.calls:
        readers = tuple(
            layer
            for layer in layers
            if isinstance(layer.module, nn.Linear) and layer.call.inputs == call.outputs
        )
        group = Group(trace.modules[call.path], readers)
        if readers and _is_norm(group.norm) and trace.is_read_by(*readers):
            is_own = all(trace.is_private(x, call.path) for x in group.scaled.values())
            is_once = trace.flow.only_call([call.path]) is not None
            if is_own and is_once and _is_proportional(group):
                groups.append(group)
    return groups


@torch.no_grad()
def smooth(group: Group, largest: Tensor, alpha: float, changes: Changes) -> None:
    """Rescale the channels of a norm, given their largest magnitudes."""
    weights = [layer.weight.detach().double() for layer in group.readers]
    columns = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    scale = (largest**alpha / columns ** (1 - alpha)).clamp(min=_SMALLEST)
    is_used = (largest > _SMALLEST) & (columns > _SMALLEST)
    scale = torch.where(is_used, scale, 1.0)
    for parameter in group.scaled.values():
        changes.write(parameter, parameter.double() / scale)
    for layer, weight in zip(group.readers, weights, strict=True):
        changes.write(layer.weight, weight * scale)


def _is_norm(module: nn.Module) -> bool:
    is_named = any(cls.__name__.endswith(_NAMES) for cls in type(module).__mro__)
    weight = module._parameters.get("weight")
    return is_named and weight is not None and weight.dim() == 1


@torch.no_grad()
def _is_proportional(group: Group) -> bool:
    """Whether the output is proportional to the parameters: some norms multiply by one plus their weight."""
    weight = group.scaled["weight"]
    sample = torch.randn(4, weight.numel(), generator=torch.Generator().manual_seed(0)).to(weight)
    halves = {name: x / 2 for name, x in group.scaled.items()}
    with in_float(group.norm):
        whole = group.norm(sample)
        half = torch.func.functional_call(group.norm, halves, (sample,))
    return torch.allclose(half * 2, whole, rtol=1e-2, atol=1e-4)
