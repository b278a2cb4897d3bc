"""Cross-layer equalization: give the channels between two layers equal ranges of weights.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019. If only a
ReLU (or nothing) is between two layers, channel ``i`` can be divided by ``s_i`` at the output of the
first and multiplied again at the input of the second. With ``r1_i`` and ``r2_i`` the largest magnitudes
of its weights, batch norms folded in, ``s_i = sqrt(r1_i / r2_i)`` makes both equal.

A factor passes through a ReLU6 only if nothing is clipped, before and after. So channels that come close to
six in calibration are not changed, and the others grow only while they stay below it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.ptq.changes import Changes
from lilliput.frameworks.torch.ptq.trace import PlainLayer, Trace

# Operations that commute with a positive factor on a channel.
_HOMOGENEOUS = frozenset(
    {
        *("relu", "leaky_relu"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
    }
)
_SWEEPS = 20
_SETTLED = 1e-3
_LIMIT = 100.0  # keeps a nearly dead channel from blowing up
_CLEAR = 0.8  # of a clip's upper bound, which a channel may reach in calibration

Values = dict[nn.Parameter, Tensor]


@dataclass(frozen=True)
class Pair:
    """Two layers, and the batch norms after them, or None.

    ``limit`` is the upper bound of a clip between them, infinite if there is none.
    """

    first: PlainLayer
    norm: Any
    second: PlainLayer
    next_norm: Any
    limit: float = math.inf

    @property
    def maker(self) -> nn.Module:
        """The module that returns the channels, before any clip."""
        found: nn.Module = self.first.module if self.norm is None else self.norm
        return found

    @property
    def scaled(self) -> list[nn.Parameter]:
        """The parameters that scale the channels: those of the norm, or of the first layer itself."""
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
        limit = _limit_behind(value, trace)
        second = by_input.get(_pass_homogeneous(value, trace, limit))
        if second is not None and trace.is_read_by(second) and _agree(first, second):
            modules = [x and x.module for x in (norm, trace.norm_after(second))]
            pairs.append(Pair(first, modules[0], second, modules[1], limit))
    return pairs


class Highest:
    """The largest value of each channel in the output of a module."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.value: Tensor | None = None

    def see(self, batch: int, seen: Tensor, output: Tensor) -> None:
        """Add an output."""
        found = output.detach().movedim(self.axis, 0).flatten(1).amax(1).double()
        self.value = found if self.value is None else torch.maximum(self.value, found)


def is_clear(pair: Pair, highest: Tensor) -> Tensor:
    """Return which channels stay below the clip between two layers."""
    return highest < _CLEAR * pair.limit


@torch.no_grad()
def equalize(
    pairs: Sequence[Pair], changes: Changes, highest: Mapping[nn.Module, Tensor] | None = None
) -> None:
    """Equalize pairs one after the other, until nothing changes any more.

    ``highest`` are the largest values of channels before a clip, by the module that returns them.
    """
    spans = [_span(pair, (highest or {}).get(pair.maker)) for pair in pairs]
    values: Values = {}  # in double precision, so that many small factors lose nothing
    for pair in pairs:
        for parameter in (*pair.scaled, pair.second.weight):
            values[parameter] = parameter.detach().to(torch.float64, copy=True)
    totals = [torch.ones(1, dtype=torch.float64) for _ in pairs]
    for _ in range(_SWEEPS):
        moves = [_equalize_pair(*x, spans[x[0]], values, totals) for x in enumerate(pairs)]
        if max(moves) < _SETTLED:
            break
    for parameter, value in values.items():
        changes.write(parameter, value)


def _span(pair: Pair, highest: Tensor | None) -> tuple[Any, Any]:
    """Return the allowed range of the factors of a pair."""
    low, high = torch.tensor(1 / _LIMIT).double(), torch.tensor(_LIMIT).double()
    if math.isinf(pair.limit):
        return low, high
    if highest is None:
        raise ValueError(f"{pair.first.path}: a clip follows, and its channels were not observed.")
    low, high = low.to(highest.device), high.to(highest.device)
    moves = is_clear(pair, highest)
    low = torch.maximum(low, highest / (_CLEAR * pair.limit))
    return torch.where(moves, low, 1.0), torch.where(moves, high, 1.0)


def _equalize_pair(
    index: int, pair: Pair, span: tuple[Tensor, Tensor], values: Values, totals: list[Tensor]
) -> float:
    """Rescale the channels between two layers; return the largest change, as a logarithm."""
    groups, weight = pair.second.groups, values[pair.second.weight]
    rows = _folded(pair.first.weight, pair.norm, values).flatten(1).amax(1)
    columns = _folded(pair.second.weight, pair.next_norm, values)
    shape = (groups, weight.shape[0] // groups, weight.shape[1], -1)
    columns = columns.reshape(shape).amax((1, 3)).flatten()
    scale = torch.where((rows > 0) & (columns > 0), (rows / columns).sqrt(), 1.0)
    before = totals[index].to(scale.device)
    low, high = (end.to(scale.device) for end in span)
    totals[index] = torch.minimum(torch.maximum(before * scale, low), high)
    scale = totals[index] / before
    for parameter in pair.scaled:
        values[parameter] /= scale.reshape(-1, *[1] * (parameter.dim() - 1))
    weight.view(shape).mul_(scale.reshape(groups, 1, -1, 1))
    return float(scale.log().abs().max())


def _folded(weight: nn.Parameter, norm: Any, values: Values) -> Tensor:
    """Return the magnitudes of a weight times the factor of its batch norm."""
    magnitudes = values.get(weight, weight.detach().double()).abs()
    if norm is None:
        return magnitudes
    factor = torch.rsqrt(norm.running_var.double() + norm.eps)
    gamma = norm._parameters["weight"]
    if gamma is not None:
        factor = factor * values.get(gamma, gamma.detach().double()).abs()
    return magnitudes * factor.reshape(-1, *[1] * (weight.dim() - 1))


def _limit_behind(value: int, trace: Trace) -> float:
    """Return the upper bound of the clip that reads a value, infinite if there is none."""
    reader = trace.reader(value)
    is_read = reader is not None and reader.outputs
    bounds = trace.flow.bounds_of(reader.outputs[0]) if reader is not None and is_read else None
    is_cut = bounds is not None and bounds[0] == 0 and 0 < bounds[1] < math.inf
    return bounds[1] if bounds is not None and is_cut else math.inf


def _pass_homogeneous(value: int, trace: Trace, limit: float) -> int:
    while reader := trace.reader(value):
        bounds = trace.flow.bounds_of(reader.outputs[0]) if reader.outputs else None
        if trace.name_of(reader) not in _HOMOGENEOUS and bounds != (0, limit):
            break
        value = reader.outputs[0]
    return value


def _has_own_affine(norm: Any, trace: Trace) -> bool:
    held = [norm.module._parameters[name] for name in ("weight", "bias")]
    return all(x is not None and trace.is_private(x, norm.path) for x in held)


def _agree(first: PlainLayer, second: PlainLayer) -> bool:
    """Whether the output channels of one layer are the input channels of the other."""
    axes = {layer.wrapper.layer_info.channel_axis for layer in (first, second)}
    return len(axes) == 1 and first.weight.shape[0] == second.weight.shape[1] * second.groups
