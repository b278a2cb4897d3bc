"""DoReFaQuantizer: low-bit weights, activations and gradients.

Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth
Gradients", 2016. With ``quantize_k(x) = round((2**k - 1) * x) / (2**k - 1)`` on [0, 1]::

    weight      2 * quantize_k(tanh(w) / (2 * max|tanh(w)|) + 1/2) - 1,  one bit: sign(w) * mean|w|
    activation  quantize_k(clip(x, 0, 1))
    gradient    2 * max|g| * (quantize_k(g / (2 * max|g|) + 1/2 + N) - 1/2)

where ``N`` is noise from ``-1/2`` to ``1/2``, divided by ``2**k - 1``, and ``max|g|`` is taken for each
sample of a batch: the gradient is unbiased. Rounding and sign pass the gradient straight through;
everything else is differentiated.

>>> import torch
>>> model = DoReFaQuantizer(torch.nn.Linear(50, 50), [{"quant_bits": {"weight": 2}}]).compress()
>>> len(model.weight.unique())
4
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from lilliput.config.layer import QuantType
from lilliput.config.select import Selection
from lilliput.config.spec import Bits, BitsRule, Rule
from lilliput.core.quantizer import Quantizer
from lilliput.errors import Problem
from lilliput.ops.fakequant import mean_magnitude
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams
from lilliput.quantization.grids import bits_of
from lilliput.registry import register_quantizer

_WIDEST = 16  # bits of an integer grid


def dorefa_weight(weight: Tensor, bits: int) -> Tensor:
    """Return a weight quantized as in DoReFa-Net, differentiably.

    Examples
    --------
    >>> import torch
    >>> dorefa_weight(torch.tensor([-2.0, 0.1, 4.0]), bits=1)
    tensor([-2.0333,  2.0333,  2.0333])
    """
    xp = namespace(weight)
    wide = xp.widen(weight)
    if bits == 1:
        plain = xp.detach(wide)
        return xp.straight_through(
            weight, xp.to_float(xp.sign(plain) * xp.mean(xp.abs(plain)), like=weight)
        )
    levels = 2**bits - 1
    squeezed = xp.tanh(wide)
    largest = xp.max(xp.abs(squeezed))
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    scaled = levels * (squeezed / (2 * largest) + 0.5)
    rounded = xp.straight_through(scaled, xp.round(scaled))
    return xp.to_float((2 * rounded - levels) / levels, like=weight)


def dorefa_gradient(gradient: Tensor, bits: int) -> Tensor:
    """Return a gradient rounded stochastically to ``2**bits`` levels, without bias.

    The first axis is the batch axis; each sample has its own levels.

    Examples
    --------
    >>> import torch
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...
    >>> dorefa_gradient(torch.tensor([[1.0, 0.5, -2.0], [0.0, 0.0, 0.0]]), bits=1)
    tensor([[ 2.,  2., -2.],
            [-0., -0.,  0.]])
    """
    xp, levels = namespace(gradient), 2**bits - 1
    shape = xp.shape(gradient)
    if not shape or not xp.size(gradient):
        return gradient
    wide = xp.widen(gradient)
    largest = xp.max_over(xp.reshape(xp.abs(wide), [shape[0], -1]), 1)
    largest = xp.reshape(largest, [shape[0], *(1 for _ in shape[1:])])
    unit = wide / xp.where(largest > 0, largest, xp.ones_like(largest)) / 2 + 0.5
    noise = (xp.uniform_like(unit) - 0.5) / levels
    integers = xp.round(levels * xp.clip(unit + noise, 0, 1))
    return xp.to_float(largest * ((2 * integers - levels) / levels), like=gradient)


class DoReFaRule(BitsRule):
    """Bits of weights and activations, and of gradients."""

    gradient_bits: Bits | None = Field(
        None, description="Bits of the gradient of the layer's output; None does not quantize it."
    )


@register_quantizer("dorefa")
class DoReFaQuantizer(Quantizer):
    """Quantize weights, activations and gradients as in DoReFa-Net.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``quant_bits``, 8 by default, and
        ``gradient_bits``: with it, the gradient of the layer's output is quantized in the backward pass, with
        noise from the framework's own generator. Inputs and outputs are clipped to [0, 1].
        The paper keeps the first and the last layer in float: exclude them by name.

    Examples
    --------
    >>> import torch
    >>> rule = {"quant_types": ["weight", "input"], "quant_bits": {"weight": 1, "input": 2}}
    >>> quantizer = DoReFaQuantizer(torch.nn.Linear(4, 2), [{**rule, "gradient_bits": 6}])
    >>> quantizer.compress()(torch.rand(8, 4)).sum().backward()
    """

    paper = "Zhou et al. 2016, DoReFa-Net"

    rule: ClassVar[type[Rule]] = DoReFaRule
    quant_grad = None
    _remote: tuple[Any, ...] = ()

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the weight on the DoReFa grid."""
        return dorefa_weight(weight, bits_of(wrapper.config, "weight"))

    def quantize_input(  # type: ignore[override]
        self, tensor: Tensor, wrapper: Any, **kwargs: Any
    ) -> Tensor:
        """Return the input, clipped to [0, 1], on its grid."""
        return self._round_unit(tensor, wrapper, "input")

    def quantize_output(self, output: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the output, clipped to [0, 1], on its grid, and quantize its gradient."""
        bits = wrapper.config.get("gradient_bits")
        if bits is not None:
            rounding = partial(dorefa_gradient, bits=bits)
            output = namespace(output).map_gradient(output, rounding)
        is_asked = "output" in wrapper.roles
        return self._round_unit(output, wrapper, "output") if is_asked else output

    def _round_unit(self, tensor: Tensor, wrapper: Any, target: str) -> Tensor:
        xp, held = namespace(tensor), self._unit(wrapper, target)
        unit = xp.clip(xp.widen(tensor), 0, 1)
        rounded = xp.round_to_grid(unit, held.scale, held.grid.low, held.grid.high)
        return xp.to_float(rounded, like=tensor)

    def _unit(self, wrapper: Any, target: str) -> QParams:
        """Return the grid from zero to one."""
        grid = Grid(bits_of(wrapper.config, target), is_signed=False, is_symmetric=False)
        return self._held(wrapper, grid, 1 / grid.high)

    def _held(self, wrapper: Any, grid: Grid, scale: float) -> QParams:
        tensor = self._backend.tensor
        return QParams(tensor(scale, wrapper), tensor(0.0, wrapper), grid)

    def qparams(self, wrapper: Any, quant_type: QuantType) -> QParams | None:
        """Return the grid of a tensor: integer multiples of ``1 / (2**bits - 1)``.

        Weights of k bits are the odd multiples, integers of k + 1 bits.
        """
        target = quant_type.value
        if target not in wrapper.roles:
            return None
        if quant_type is not QuantType.WEIGHT:
            return self._unit(wrapper, target)
        bits = bits_of(wrapper.config, target)
        if bits >= _WIDEST:
            return None
        grid = Grid(bits + 1, is_signed=True, is_symmetric=True, is_narrow=True)
        if bits > 1:
            return self._held(wrapper, grid, 1 / grid.high)
        size = mean_magnitude(self._backend.masked_weight(wrapper), grid)
        xp = namespace(size)
        return QParams(xp.positive(size), xp.zeros_like(size), grid)

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return a problem for each rule that requests something a layer does not support."""
        problems = super()._find_problems(selection)
        for decision in selection.decisions:
            layer = decision.layer
            is_chosen = decision.rule is not None and not decision.excluded
            if is_chosen and layer.is_bypassed and "gradient_bits" in layer.config:
                text = (
                    f"layer {layer.name!r} is computed by its parent without being called, so its "
                    "gradient cannot be quantized; omit the key for this layer."
                )
                problems.append(Problem(f"rule {decision.rule} → gradient_bits", text))
        return problems

    def _wrap_model(self) -> None:
        super()._wrap_model()
        # Where the output is quantized, the same hook quantizes its gradient.
        owners = {
            owner.path: wrapper
            for wrapper in reversed(self.get_modules_wrapper())
            for owner in wrapper.layer_info.owners
            if "gradient_bits" in wrapper.config and "output" not in wrapper.roles
        }
        self._remote = tuple(
            self._backend.add_remote_quantizer(self.bound_model, path, wrapper, "output")
            for path, wrapper in owners.items()
        )

    def _detach_all(self) -> None:
        for handle in self._remote:
            handle.remove()
        self._remote = ()
        super()._detach_all()
