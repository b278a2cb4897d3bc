"""The gradient of a quantizer, as defined by a researcher."""

from __future__ import annotations

from typing import Any

from lilliput.config.layer import QuantType
from lilliput.errors import AlgorithmError


class QuantGrad:
    """The gradient of a quantizer; by default straight through.

    Subclass it, override :meth:`quant_backward`, and set ``self.quant_grad`` of a quantizer to the
    subclass. A quantizer with ``quant_grad = None`` is differentiated through its own code instead.

    Examples
    --------
    >>> class ClipGrad(QuantGrad):
    ...     @staticmethod
    ...     def quant_backward(tensor, grad_output, quant_type):
    ...         if quant_type == QuantType.OUTPUT:
    ...             grad_output[tensor.abs() > 1] = 0
    ...         return grad_output
    """

    @staticmethod
    def quant_backward(tensor: Any, grad_output: Any, quant_type: QuantType) -> Any:
        """Return the gradient of the quantizer's input.

        Parameters
        ----------
        tensor : tensor
            The input of the quantizer.
        grad_output : tensor
            Gradient of its output; a copy that may be edited in place.
        quant_type : QuantType
            Whether this is a layer's weight, input or output.
        """
        return grad_output

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Placeholder for old code that writes ``self.quant_grad = MyGrad.apply``."""
        raise AlgorithmError(
            f"{cls.__name__}.apply is called by the engine only; set "
            f"'self.quant_grad = {cls.__name__}' in your quantizer."
        )


def gradient_rule(value: Any) -> type[QuantGrad] | None:
    """Return the QuantGrad class behind the value that an author assigned to ``quant_grad``."""
    value = getattr(value, "__self__", value)
    if value is None or (isinstance(value, type) and issubclass(value, QuantGrad)):
        return value
    raise AlgorithmError(
        f"quant_grad is {value!r}; expected a subclass of QuantGrad, or None to differentiate "
        "through the quantizer's own code."
    )
