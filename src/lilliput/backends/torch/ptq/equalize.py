"""Cross-layer equalization: give the channels between two layers equal ranges of weights.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019. Where only a
ReLU (or nothing) is between two layers, channel ``i`` may be divided by ``s_i`` on its way out of the
first and multiplied again on its way into the second. With ``r1_i`` and ``r2_i`` the largest magnitudes
of its weights, batch norms folded in, ``s_i = sqrt(r1_i / r2_i)`` makes both equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.backends.torch.ptq.changes import Changes
from lilliput.backends.torch.ptq.trace import PlainLayer, Trace

# Operations that a positive factor on a channel passes through.
_HOMOGENEOUS = frozenset(
    {
        *("relu", "leaky_relu"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
    }
)
_SWEEPS = 20
_SETTLED = 1e-3
_LIMIT = 100.0  # a channel that is all but dead must not blow up what is in it

Values = dict[nn.Parameter, Tensor]


@dataclass(frozen=True)
class Pair:
    """Two layers, and the batch norms after them, None where there are none."""

    first: PlainLayer
    norm: Any
    second: PlainLayer
    next_norm: Any

    @property
    def scaled(self) -> list[nn.Parameter]:
        """What makes the channels: parameters of the norm, or of the first layer itself."""
        owner = self.first.module if self.norm is None else self.norm
        held = (owner._parameters["weight"], owner._parameters["bias"])
        return [parameter for parameter in held if parameter is not None]


def find_pairs(trace: Trace, layers: Sequence[PlainLayer]) -> list[Pair]:
    """Return the layers between which channels can be rescaled."""
    by_input = {layer.call.inputs[0]: layer for layer in layers}
    pairs = []
    for first in layers:
        norm, value = trace.norm_after(first), first.call.outputs[0]
        if norm is not None:
            if not _has_own_affine(norm, trace):
                continue
            value = norm.value
        second = by_input.get(_pass_homogeneous(value, trace))
        if second is not None and trace.is_read_by(second) and _agree(first, second):
            modules = [x and x.module for x in (norm, trace.norm_after(second))]
            pairs.append(Pair(first, modules[0], second, modules[1]))
    return pairs


@torch.no_grad()
def equalize(pairs: Sequence[Pair], changes: Changes) -> None:
    """Equalize pairs one after the other, until nothing moves any more."""
    values: Values = {}  # in double precision, so that many small factors cost none
    for pair in pairs:
        for parameter in (*pair.scaled, pair.second.weight):
            values[parameter] = parameter.detach().to(torch.float64, copy=True)
    totals = [torch.ones(1, dtype=torch.float64) for _ in pairs]
    for _ in range(_SWEEPS):
        if max(_equalize_pair(*item, values, totals) for item in enumerate(pairs)) < _SETTLED:
            break
    for parameter, value in values.items():
        changes.write(parameter, value)


def _equalize_pair(index: int, pair: Pair, values: Values, totals: list[Tensor]) -> float:
    """Rescale the channels between two layers; return the largest change, as a logarithm."""
    groups, weight = pair.second.groups, values[pair.second.weight]
    rows = _folded(pair.first.weight, pair.norm, values).flatten(1).amax(1)
    columns = _folded(pair.second.weight, pair.next_norm, values)
    shape = (groups, weight.shape[0] // groups, weight.shape[1], -1)
    columns = columns.reshape(shape).amax((1, 3)).flatten()
    scale = torch.where((rows > 0) & (columns > 0), (rows / columns).sqrt(), 1.0)
    before = totals[index].to(scale.device)
    totals[index] = (before * scale).clamp(1 / _LIMIT, _LIMIT)
    scale = totals[index] / before
    for parameter in pair.scaled:
        values[parameter] /= scale.reshape(-1, *[1] * (parameter.dim() - 1))
    weight.view(shape).mul_(scale.reshape(groups, 1, -1, 1))
    return float(scale.log().abs().max())


def _folded(weight: nn.Parameter, norm: Any, values: Values) -> Tensor:
    """Return the magnitudes of a weight times what its batch norm multiplies its output by."""
    magnitudes = values.get(weight, weight.detach().double()).abs()
    if norm is None:
        return magnitudes
    factor = torch.rsqrt(norm.running_var.double() + norm.eps)
    gamma = norm._parameters["weight"]
    if gamma is not None:
        factor = factor * values.get(gamma, gamma.detach().double()).abs()
    return magnitudes * factor.reshape(-1, *[1] * (weight.dim() - 1))


def _pass_homogeneous(value: int, trace: Trace) -> int:
    while (reader := trace.reader(value)) and trace.name_of(reader) in _HOMOGENEOUS:
        value = reader.outputs[0]
    return value


def _has_own_affine(norm: Any, trace: Trace) -> bool:
    held = [norm.module._parameters[name] for name in ("weight", "bias")]
    return all(x is not None and trace.is_private(x, norm.path) for x in held)


def _agree(first: PlainLayer, second: PlainLayer) -> bool:
    """Whether the channels that one layer makes are those that the other reads."""
    axes = {layer.wrapper.layer_info.channel_axis for layer in (first, second)}
    return len(axes) == 1 and first.weight.shape[0] == second.weight.shape[1] * second.groups
