"""Gradients of quantization: straight through, or defined by the user's QuantGrad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lilliput.config.layer import QuantType
from lilliput.errors import StageError
from lilliput.ops.grad import QuantGrad

# Functions here return ``detach()`` of an input: the same memory, but not a view, which could not
# be changed in place (``relu_``, ``+=``).


class _StraightThrough(torch.autograd.Function):
    """Return the quantized value; its gradient goes to the tensor unchanged.

    It also goes to the quantized value, for parameters of the quantizer (a learned scale).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, quantized: Tensor) -> Tensor:
        return quantized.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], grads[0] if ctx.needs_input_grad[1] else None


class _CustomGrad(torch.autograd.Function):
    """Return the quantized value; ``quant_backward`` computes the gradient."""

    # All methods are deliberately static: a classmethod backward cannot be compiled.
    generate_vmap_rule = True

    @staticmethod
    def forward(
        tensor: Tensor, quantized: Tensor, rule: type[QuantGrad], quant_type: QuantType
    ) -> Tensor:
        return quantized.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.rule, ctx.quant_type = inputs[2:]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (tensor,) = ctx.saved_tensors
        # A clone, because user rules may edit the gradient in place, and autograd may share it.
        grad = ctx.rule.quant_backward(tensor, grads[0].clone(), ctx.quant_type)
        return grad, grads[0] if ctx.needs_input_grad[1] else None, None, None


class _MapGradient(torch.autograd.Function):
    """Return the tensor; a function transforms the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return tensor.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.function = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.function(grads[0]), None


def map_gradient(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the tensor unchanged; its gradient passes through ``function``."""
    is_forward = forward_ad._current_level >= 0  # which has no backward
    if is_forward or not (torch.is_grad_enabled() and tensor.requires_grad):
        return tensor
    result: Tensor = _MapGradient.apply(tensor, function)  # type: ignore[no-untyped-call]
    return result


def straight_through(tensor: Tensor, quantized: Tensor) -> Tensor:
    """Return ``quantized``, with the gradient going to ``tensor`` unchanged."""
    if forward_ad._current_level >= 0:  # forward mode: a Function would drop the tangent
        return tensor + (quantized - tensor).detach()
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        return quantized
    result: Tensor = _StraightThrough.apply(tensor, quantized)  # type: ignore[no-untyped-call]
    return result


def with_gradient(
    tensor: Tensor, quantized: Tensor, rule: type[QuantGrad], quant_type: QuantType
) -> Tensor:
    """Return ``quantized``, with the gradient going to ``tensor`` through a QuantGrad rule."""
    if rule.quant_backward is QuantGrad.quant_backward:
        return straight_through(tensor, quantized)
    if forward_ad._current_level >= 0:
        raise StageError(
            f"{rule.__name__} defines only a backward pass; forward-mode AD is not possible."
        )
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        return quantized
    result: Tensor = _CustomGrad.apply(  # type: ignore[no-untyped-call]
        tensor, quantized, rule, quant_type
    )
    return result
