"""CodebookQuantizer: the weights of a layer share a few trained values.

Han et al., "Deep Compression: Compressing Deep Neural Networks with Pruning, Trained Quantization and
Huffman Coding", 2016. K-means over the weights of a layer yields ``2**bits - 1`` values; zero stays zero,
so that pruned weights cost nothing more. In the forward pass, a weight is replaced by the nearest value; in
the backward pass, the gradient of a value is the sum of the gradients of its weights. The float weights are
trained straight through, so a weight can move to another value, whereas in the paper assignments are fixed.

A layer is then a table and a code of few bits per weight, which ``save(model, path, compact=True)`` writes
entropy coded.

>>> import torch
>>> model = CodebookQuantizer(torch.nn.Linear(50, 50), [{"quant_bits": 3}]).compress()
>>> len(model.weight.unique())
7
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from lilliput.config.spec import Bits, BitsRule, QuantTarget, Rule
from lilliput.core.quantizer import Quantizer
from lilliput.ops.namespace import Tensor, namespace
from lilliput.quantization.grids import bits_of
from lilliput.registry import register_quantizer

_ROUNDS = 200
_DEFAULT_BITS, _MOST_BITS = 4, 8


def cluster(values: Any, count: int) -> Any:
    """Return ``count`` values that represent the given ones, by one-dimensional k-means.

    Values are initialized at equal distances over the range, which keeps large weights best (paper).

    Parameters
    ----------
    values : array
        Numbers, in one dimension.
    count : int
        How many to return, in order.

    Examples
    --------
    >>> cluster(np.array([0.0, 0.2, 5.0, 7.0, 7.2]), 2)
    array([0.1, 6.4])
    """
    held = np.sort(np.asarray(values, np.float64))
    if not len(held):
        return np.linspace(-1.0, 1.0, count)
    sums = np.concatenate([[0.0], np.cumsum(held)])
    centers = np.linspace(held[0], held[-1], count)
    for _ in range(_ROUNDS):
        cuts = np.searchsorted(held, (centers[1:] + centers[:-1]) / 2)
        edges = np.concatenate([[0], cuts, [len(held)]])
        sizes = np.diff(edges)
        means = np.diff(sums[edges]) / np.maximum(sizes, 1)
        moved = np.where(sizes > 0, means, centers)
        if np.array_equal(moved, centers):
            break
        centers = moved
    return centers


class CodebookRule(BitsRule):
    """Bits of the code of a weight: at least 2, because zero is one of the values."""

    quant_bits: Bits | dict[QuantTarget, Bits] = Field(
        _DEFAULT_BITS,
        description="Bits of a weight's code; a layer has 2**bits - 1 values and zero.",
    )

    @model_validator(mode="after")
    def _check_count(self) -> CodebookRule:
        bits = bits_of({"quant_bits": self.quant_bits}, "weight")
        if not self.exclude and not 2 <= bits <= _MOST_BITS:
            raise ValueError(f"'quant_bits' is {bits}; expected 2 to {_MOST_BITS}.")
        return self


@register_quantizer("codebook")
class CodebookQuantizer(Quantizer):
    """Share a few values among the weights of a layer, found by k-means and then trained.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``quant_bits``, 4 by default. The
        values are added to the optimizer, in the parameter group of their layer's weight, but without
        weight decay. Their gradients are sums over many weights, so plain SGD needs a smaller learning
        rate.
    """

    paper = "Han et al. 2016, Deep Compression"

    rule: ClassVar[type[Rule]] = CodebookRule
    quant_grad = None
    keeps_zero = True
    _needs_dense_gradient = True

    _is_prepared = False

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the nearest value of each weight; zero stays zero."""
        xp = namespace(weight)
        wide = xp.widen(weight)
        shared = xp.nearest_of(wide, wrapper.codebook)
        return xp.to_float(xp.where(wide == 0, wide, shared), like=weight)

    def _prepare(self) -> None:
        super()._prepare()
        if not self._is_prepared:
            self._is_prepared = True
            for wrapper in self.get_modules_wrapper():
                self._start(wrapper)

    def _start(self, wrapper: Any) -> None:
        """Initialize the values of a layer from its unpruned weights."""
        weight = self._backend.masked_weight(wrapper)
        xp = namespace(weight)
        held = xp.to_numpy(weight).ravel()
        bits = bits_of({"quant_bits": _DEFAULT_BITS, **wrapper.config}, "weight")
        centers = cluster(held[np.isfinite(held) & (held != 0)], 2**bits - 1)
        one = self._backend.tensor(1.0, wrapper)
        values = xp.stack([one * float(center) for center in centers], 0)
        wrapper.set_attribute("codebook", self._backend.parameter(values))

    def _after_step(self) -> None:
        """Average the values over all processes."""
        super()._after_step()
        learned = [p for wrapper in self.get_modules_wrapper() for p in self._learned(wrapper)]
        if learned and not self._backend.is_joining(self.bound_model):
            self._backend.average(learned)

    def _learned(self, wrapper: Any) -> list[Any]:
        return [] if self._backend.keeps_bounds else list(wrapper.parameters())
