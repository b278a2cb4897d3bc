"""Gradients of quantization: straight through, or defined by the user's QuantGrad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from lilliput.config.layer import QuantType
from lilliput.frameworks.keras.variables import tensor_of
from lilliput.ops.grad import QuantGrad

Tensor = Any


def with_backward(
    forward: Callable[..., tuple[Tensor, Any]],
    backward: Callable[..., tuple[Tensor, ...]],
    *tensors: Tensor,
) -> Tensor:
    """Return the first part of ``forward(*tensors)``, with gradients by ``backward``.

    ``backward(upstream, kept)`` returns a gradient for each tensor; ``kept`` is the second part of the
    result of ``forward``. All values they need must be among the tensors: TensorFlow raises for a captured
    variable, and on torch its gradient is lost.
    """

    def run(*inputs: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        output, kept = forward(*inputs)

        def grad(*args: Tensor, upstream: Tensor = None) -> Any:
            if upstream is None:
                (upstream,) = args
            found = backward(upstream, kept)
            return found if len(found) > 1 else found[0]

        return output, grad

    return ops.custom_gradient(run)(*[tensor_of(x) for x in tensors])


def straight_through(tensor: Tensor, quantized: Tensor) -> Tensor:
    """Return ``quantized``, with the gradient going to ``tensor`` unchanged."""
    return with_backward(
        lambda x, y: (ops.stop_gradient(y), None), lambda g, _: (g, g), tensor, quantized
    )


def map_gradient(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the tensor unchanged; its gradient passes through ``function``."""
    return with_backward(
        lambda x: (ops.stop_gradient(x), None), lambda g, _: (function(g),), tensor
    )


def touch(tensor: Tensor, variables: Sequence[Any]) -> Tensor:
    """Return the tensor unchanged; it adds a zero gradient to the variables."""
    return with_backward(
        lambda x, *held: (ops.stop_gradient(x), held),
        lambda g, held: (g, *(ops.zeros_like(x) for x in held)),
        tensor,
        *variables,
    )


def with_gradient(
    tensor: Tensor, quantized: Tensor, rule: type[QuantGrad], quant_type: QuantType
) -> Tensor:
    """Return ``quantized``, with the gradient going to ``tensor`` through a QuantGrad rule."""
    if rule.quant_backward is QuantGrad.quant_backward:
        return straight_through(tensor, quantized)
    return with_backward(
        lambda x, y: (ops.stop_gradient(y), x),
        lambda g, x: (rule.quant_backward(x, g, quant_type), g),
        tensor,
        quantized,
    )
