"""The noise of uncertain weights, added to the output of a layer.

A sum of many normal variables is normal: with weights of means ``w`` and variances ``v``, the output for
an input ``x`` has the mean ``w x`` and variance ``v x²``. Drawing it once per output, instead of once per
weight, gives every example its own noise and reduces the variance of gradients. Kingma et al., "Variational
dropout and the local reparameterization trick", 2015.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_SMALLEST = 1e-12  # smallest variance of an output, so that its root has a gradient


class Noise:
    """A forward hook for ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d``; in training only."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor:
        """Return the output with noise, computed from its inputs and the variances of the weights."""
        if not module.training:
            return output
        with torch.autocast(output.device.type, enabled=False):
            held = self.wrapper.log_variance
            wide = torch.promote_types(held.dtype, torch.float32)
            inputs = args[0] if args else kwargs["input"]
            squares, variance = inputs.to(wide).square(), held.to(wide).exp()
            if isinstance(module, nn.Linear):
                spread = functional.linear(squares, variance)
            else:
                spread = module._conv_forward(squares, variance, None)  # type: ignore[operator]
            deviation = (spread + _SMALLEST).sqrt()
            noise = deviation * torch.randn_like(deviation)
        return output + noise.to(output.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Noise:
        return Noise(copy.deepcopy(self.wrapper, memo))
