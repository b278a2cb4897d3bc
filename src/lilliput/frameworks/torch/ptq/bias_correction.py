"""Bias correction: rounding shifts the mean of a layer's output, and its bias compensates.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, with the
means measured on data: ``b := b + mean(y) - mean(y_quantized)`` for each channel, one layer after
the other, so that each sees the corrected layers before it.
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

    def see(self, batch: int, inputs: Tensor, output: Tensor) -> None:
        """Add a batch."""
        rows = output.detach().movedim(self.axis, -1).flatten(0, -2).double()
        self.total = self.total + rows.sum(0)
        self.count += rows.shape[0]

    @property
    def value(self) -> Tensor:
        """The mean so far."""
        return self.total / self.count  # type: ignore[no-any-return]


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
