"""Norms of a masked model use kept channels only: they run on a smaller copy of themselves.

A mean that includes masked channels is not the mean that the shrunk model will compute. So a norm
gathers the kept channels, computes as it will after shrinking, and returns zeros elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lilliput.errors import UnsupportedModelError

Keep = tuple[int, Tensor, int]  # dimension, kept indices, full size


@dataclass(eq=False)
class Narrow:
    """How one leaf module without buffers runs on kept channels.

    Parameters
    ----------
    twin : torch.nn.Module
        The module as it will be once shrunk; only its code is used, not its parameters.
    inputs, outputs : list of Keep
        The kept indices of its input and its output.
    parameters : dict
        The kept indices of each parameter, by its name in the module.
    """

    twin: nn.Module
    inputs: list[Keep]
    outputs: list[Keep]
    parameters: dict[str, list[Keep]]

    def forward(self, module: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the module's output for kept channels, and zeros for the others."""
        if x.is_nested:
            raise UnsupportedModelError(
                "a norm over pruned channels received a nested tensor; create the nn.TransformerEncoder "
                "with enable_nested_tensor=False."
            )
        held = {
            name: _gather(getattr(module, name), self.parameters.get(name, []))
            for name, parameter in module._parameters.items()
            if parameter is not None
        }
        result: Tensor = functional_call(self.twin, held, (_gather(x, self.inputs), *args), kwargs)
        for dim, keep, size in self.outputs:
            shape = [size if d == dim else n for d, n in enumerate(result.shape)]
            result = result.new_zeros(shape).index_copy(dim, keep.to(result.device), result)
        return result


def _gather(tensor: Tensor, kept: list[Keep]) -> Tensor:
    for dim, keep, _ in kept:
        tensor = tensor.index_select(dim, keep.to(tensor.device))
    return tensor


def keep_of(dim: int, flags: Any) -> Keep:
    """Return the indices that flags over a dimension keep."""
    keep = torch.from_numpy(flags.nonzero()[0])
    return dim, keep, len(flags)
