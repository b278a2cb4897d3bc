"""BNNQuantizer: one-bit weights and activations, -1 and 1.

Courbariaux et al., "Binarized Neural Networks: Training Deep Neural Networks with Weights and
Activations Constrained to +1 or -1", 2016. The forward pass computes ``sign(x)``, with 1 for zero; the
backward pass keeps the gradient of a weight, and that of an activation where ``|x| <= 1``. The float weights
are clipped to [-1, 1] after each step: outside, they would grow without any effect.

>>> import torch
>>> model = BNNQuantizer(torch.nn.Linear(50, 50), [{"quant_types": ["weight", "output"]}]).compress()
>>> model.weight.unique()
tensor([-1.,  1.], grad_fn=<Unique2Backward0>)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from lilliput.config.layer import QuantType
from lilliput.config.spec import QuantTarget, Rule, Targets
from lilliput.core.checks import checked_flag
from lilliput.core.quantizer import Quantizer
from lilliput.ops.grad import QuantGrad
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams
from lilliput.registry import register_quantizer

One = Annotated[int, Field(ge=1, le=1)]
_GRID = Grid(bits=2, is_signed=True, is_symmetric=True, is_narrow=True)


def binarize(tensor: Tensor) -> Tensor:
    """Return -1 for negative numbers and 1 for others; NaN stays NaN, so that it is noticed.

    Examples
    --------
    >>> import torch
    >>> binarize(torch.tensor([-0.3, 0.0, 7.0]))
    tensor([-1.,  1.,  1.])
    """
    xp = namespace(tensor)
    return xp.where(tensor >= 0, 1.0, xp.where(tensor < 0, -1.0, tensor))


class HardTanhGrad(QuantGrad):
    """The gradient of ``clip(x, -1, 1)`` for activations, straight through for weights."""

    @staticmethod
    def quant_backward(tensor: Any, grad_output: Any, quant_type: QuantType) -> Any:
        """Return the gradient, zero where an activation is beyond -1 or 1."""
        if quant_type == QuantType.WEIGHT:
            return grad_output
        xp = namespace(tensor)
        return xp.where(xp.abs(tensor) <= 1, grad_output, xp.zeros_like(grad_output))


class BNNRule(Rule):
    """Which tensors of a layer to binarize."""

    quant_types: Targets = Field(["weight"], description="Tensors to quantize.")
    # The number of bits is fixed and not a setting; config lists written for NNI still contain it.
    one_bit: One | dict[QuantTarget, One] = Field(
        1, alias="quant_bits", exclude=True, description="Optional; always 1."
    )


@register_quantizer("bnn")
class BNNQuantizer(Quantizer):
    """Binarize weights and activations.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. The first and the last layer should stay in
        float: exclude them by name.
    clip_weights : bool
        Whether to clip the float weights to [-1, 1] after each step, as in the paper.
    """

    paper = "Courbariaux et al. 2016, Binarized neural networks"

    rule: ClassVar[type[Rule]] = BNNRule
    quant_grad = HardTanhGrad
    clip_weights: bool = True

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        *,
        clip_weights: bool = True,
    ) -> None:
        self.clip_weights = checked_flag("clip_weights", clip_weights)
        super().__init__(model, config_list, optimizer)

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the signs of the weights."""
        return binarize(weight)

    def quantize_input(  # type: ignore[override]
        self, tensor: Tensor, wrapper: Any, **kwargs: Any
    ) -> Tensor:
        """Return the signs of the input."""
        return binarize(tensor)

    def quantize_output(self, output: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the signs of the output."""
        return binarize(output)

    def step(self) -> None:
        """Clip the float weights."""
        for wrapper in self.get_modules_wrapper() if self.clip_weights else ():
            if "weight" in wrapper.roles:
                xp = namespace(wrapper.weight)
                xp.assign(wrapper.weight, xp.clip(xp.detach(wrapper.weight), -1, 1))

    def qparams(self, wrapper: Any, quant_type: QuantType) -> QParams | None:
        """Return the grid of -1, 0 and 1, where zero is used by pruned weights only."""
        if quant_type.value not in wrapper.roles:
            return None
        one, zero = (self._backend.tensor(value, wrapper) for value in (1.0, 0.0))
        return QParams(one, zero, _GRID, is_result=quant_type is not QuantType.WEIGHT)
