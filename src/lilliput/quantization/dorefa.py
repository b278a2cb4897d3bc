"""DoReFaQuantizer: weights squeezed by tanh and rounded to few bits.

Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth
Gradients", 2016, eq. 9. For k > 1 bits::

    w_q = 2 * quantize_k(tanh(w) / (2 * max|tanh(w)|) + 1/2) - 1
    quantize_k(x) = round((2**k - 1) * x) / (2**k - 1)

and for one bit ``w_q = sign(w) * mean|w|``. Rounding and sign pass the gradient straight through;
everything else is differentiated as it stands.

>>> import torch
>>> model = DoReFaQuantizer(torch.nn.Linear(50, 50), [{"quant_bits": {"weight": 2}}]).compress()
>>> len(model.weight.unique())
4
"""

from __future__ import annotations

from typing import Any, ClassVar

from lilliput.config.spec import BitsRule, Rule
from lilliput.core.quantizer import Quantizer
from lilliput.ops.fakequant import quantize_unit
from lilliput.ops.namespace import Tensor, namespace
from lilliput.quantization.bits import bits_of
from lilliput.registry import register_quantizer


def dorefa_weight(weight: Tensor, bits: int) -> Tensor:
    """Return a weight as DoReFa-Net sees it, differentiable.

    Examples
    --------
    >>> import torch
    >>> dorefa_weight(torch.tensor([-2.0, 0.1, 4.0]), bits=1)
    tensor([-2.0333,  2.0333,  2.0333])
    """
    xp = namespace(weight)
    if bits == 1:
        magnitude = xp.mean(xp.abs(xp.detach(weight)))
        return xp.straight_through(weight, xp.sign(xp.detach(weight)) * magnitude)
    squeezed = xp.tanh(xp.widen(weight))
    largest = xp.max(xp.abs(squeezed))
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    quantized = 2 * quantize_unit(squeezed / (2 * largest) + 0.5, bits) - 1
    return xp.to_float(quantized, like=weight)


@register_quantizer("dorefa")
class DoReFaQuantizer(Quantizer):
    """Quantize weights as in DoReFa-Net.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules hold ``quant_bits``, 8 if not given.
        The paper leaves the first and the last layer in float: exclude them by name.
    """

    rule: ClassVar[type[Rule]] = BitsRule
    quant_grad = None

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the weight on the DoReFa grid."""
        return dorefa_weight(weight, bits_of(wrapper.config, "weight"))
