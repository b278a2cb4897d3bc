"""NaiveQuantizer: round weights to the nearest of ``2**bits - 1`` levels around zero.

``scale = max|w| / (2**(bits-1) - 1)`` per layer, ``q(w) = scale * round(w / scale)``.

>>> import torch
>>> model = NaiveQuantizer(torch.nn.Linear(50, 50), [{"quant_bits": 2}]).compress()
>>> len(model.weight.unique())
3
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator

from lilliput.config.layer import QuantType
from lilliput.config.spec import BitsRule, Rule
from lilliput.core.quantizer import Quantizer
from lilliput.ops.fakequant import covering, quantize_symmetric
from lilliput.ops.namespace import Tensor
from lilliput.ops.qparams import Grid, QParams
from lilliput.quantization.grids import bits_of
from lilliput.registry import register_quantizer


class NaiveRule(BitsRule):
    """Two bits or more: one bit has no symmetric grid."""

    @model_validator(mode="after")
    def _check_grid(self) -> NaiveRule:
        if not self.exclude and bits_of(self.settings(), "weight") < 2:
            raise ValueError("'quant_bits' is 1; expected 2 or more, or use DoReFaQuantizer.")
        return self


@register_quantizer("naive")
class NaiveQuantizer(Quantizer):
    """Quantize weights symmetrically by their largest magnitude; the gradient passes straight through.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``quant_bits``, 8 by default.
    """

    rule: ClassVar[type[Rule]] = NaiveRule
    keeps_zero = True

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the weight on its integer grid."""
        return quantize_symmetric(weight, bits_of(wrapper.config, "weight"))

    def qparams(self, wrapper: Any, quant_type: QuantType) -> QParams | None:
        """Return the grid of the weight."""
        bits = bits_of(wrapper.config, "weight")
        grid = Grid(bits, is_signed=True, is_symmetric=True, is_narrow=True)
        return covering(self._backend.masked_weight(wrapper), grid)
