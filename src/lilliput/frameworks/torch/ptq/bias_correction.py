"""Bias correction: rounding shifts the mean of a layer's output, and its bias compensates.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, with the means
measured on data: ``b := b + mean(y) - mean(y_quantized)`` for each channel, layer by layer, so that each
sees the corrected outputs of the layers before it. That takes a run per layer. The quick way corrects all
layers in one run: each batch is shifted to its float means as it passes, which is equivalent if there is a
single batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.ptq.changes import Changes
from lilliput.frameworks.torch.ptq.trace import Norm, Trace
from lilliput.frameworks.torch.sidecar import mask_of


class ChannelMean:
    """The mean of each channel over all batches."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.total: Any = 0.0
        self.count = 0
        self.calls: list[Tensor] = []  # the mean of each call

    def see(self, batch: int, inputs: Tensor, output: Tensor) -> None:
        """Take a call into account."""
        axis = self.axis % output.dim()
        others = [i for i in range(output.dim()) if i != axis]
        total = (
            output.detach().sum(others, dtype=torch.float64) if others else output.detach().double()
        )
        count = output.numel() // output.shape[axis]
        self.total = self.total + total
        self.count += count
        self.calls.append(total / count)

    @property
    def value(self) -> Tensor:
        """The mean so far."""
        return self.total / self.count  # type: ignore[no-any-return]


class CorrectedMean(ChannelMean):
    """The mean of each channel of a layer whose outputs are shifted to their float means."""

    def __init__(self, axis: int, wanted: ChannelMean) -> None:
        super().__init__(axis)
        self.wanted = wanted

    def correct(self, batch: int, inputs: Tensor, output: Tensor) -> Tensor:
        """Take a call into account, and return its output with the other mean."""
        self.see(batch, inputs, output)
        difference = self.wanted.calls[len(self.calls) - 1] - self.calls[-1]
        moved = output.movedim(self.axis, -1) + difference.to(output.dtype)
        return moved.movedim(-1, self.axis)


@dataclass(frozen=True)
class Bias:
    """The bias of a layer, or of the batch norm after it, which multiplies by ``factor`` first."""

    owner: nn.Module
    parameter: nn.Parameter
    factor: Tensor | None = None


@torch.no_grad()
def find_bias(wrapper: Any, norm: Norm | None, trace: Trace) -> Bias | None:
    """Return the bias that can shift a layer's output, or None if it has none of its own."""
    owner = wrapper.layer_info.owners[0]
    bias = owner.module._parameters.get("bias")
    if bias is not None:
        is_own = any(trace.is_private(bias, path) for path in owner.paths)
        return Bias(owner.module, bias) if is_own else None
    if norm is None:
        return None
    gamma, beta = (norm.module._parameters[name] for name in ("weight", "bias"))
    if beta is None or not trace.is_private(beta, norm.path):
        return None
    factor = torch.rsqrt(norm.module.running_var.double() + norm.module.eps)
    return Bias(norm.module, beta, factor * gamma.double())


@torch.no_grad()
def shift(bias: Bias, difference: Tensor, changes: Changes) -> None:
    """Add to a layer's output by its bias; pruned entries stay zero."""
    if bias.factor is not None:
        difference = difference * bias.factor
    mask = mask_of(bias.owner, "bias")
    if mask is not None:
        difference = difference * mask
    changes.write(bias.parameter, bias.parameter.double() + difference)
