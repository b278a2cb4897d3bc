"""``quant_backward`` with the seven arguments of NNI 2.x, besides the documented three."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from lilliput.torch import QuantGrad, QuantType

_COUNT = 7  # tensor, grad_output, quant_type, scale, zero_point, qmin, qmax


def wants_grid(rule: type[QuantGrad] | None) -> bool:
    """Whether an author's ``quant_backward`` takes scale, zero point and the bounds of the grid."""
    if rule is None or rule.quant_backward is QuantGrad.quant_backward:
        return False
    return len(inspect.signature(rule.quant_backward).parameters) == _COUNT


def with_grid(
    rule: type[QuantGrad], quantizer: Any, wrapper: Any, quant_type: QuantType
) -> type[QuantGrad]:
    """Return the rule with three arguments, for one quantizer of one layer."""

    class WithGrid(QuantGrad):
        @staticmethod
        def quant_backward(tensor: Any, grad_output: Any, kind: QuantType) -> Any:
            grid = _grid(quantizer, wrapper, quant_type, tensor)
            return rule.quant_backward(tensor, grad_output, kind, *grid)

    return WithGrid


def _grid(quantizer: Any, wrapper: Any, quant_type: QuantType, tensor: Any) -> tuple[Any, ...]:
    """Return scale, zero point, smallest and largest integer, as in NNI."""
    known = quantizer.qparams(wrapper, quant_type)
    if known is not None:
        ends = (known.grid.low, known.grid.high)
        return known.scale, known.zero_point, *(tensor.new_tensor([float(x)]) for x in ends)
    bits = wrapper.config.get("quant_bits", 8)
    bits = bits if isinstance(bits, int) else bits.get(quant_type.value, 8)
    module = wrapper.module
    scale, zero = getattr(module, "scale", None), getattr(module, "zero_point", None)
    ends = torch.tensor([0.0]), torch.tensor([float((1 << bits) - 1)])
    return scale, zero, *(x.to(tensor.device) for x in ends)
