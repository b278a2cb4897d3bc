"""LSQQuantizer and LSQPlusQuantizer: the scales are trained along with the weights.

Esser et al., "Learned Step Size Quantization", 2020; Bhalgat et al., "LSQ+: Improving low-bit
quantization through learnable offsets and better initialization", 2020. With ``v`` the weight or
activation and ``Q`` the largest integer, the gradient of a scale is the sum of

    round(v / s) - v / s  inside the range,  the clipped integer outside,

times ``1 / sqrt(n * Q)``, where ``n`` weights (or features) share it. Scales are initialized to
``2 * mean|v| / sqrt(Q)``.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> model = LSQQuantizer(model, [{"op_types": ["Linear"], "quant_bits": 4}], optimizer).compress()
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

from lilliput.ops.fakequant import covering, mean_magnitude
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams, fit, spread
from lilliput.quantization.placed import ACTIVATIONS
from lilliput.quantization.ranges import RangeQuantizer
from lilliput.registry import register_quantizer

_SMALLEST = 1e-8


@register_quantizer("lsq", "LsqQuantizer")
class LSQQuantizer(RangeQuantizer):
    """Learn the scale of each weight and activation.

    The zero point of an activation is fixed by the first batch: it is zero after a ReLU.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, quant_start_step
        See :class:`~lilliput.quantization.ranges.RangeQuantizer`. The scales are added to the optimizer, in
        the parameter group of their layer's weight, but without weight decay.
    """

    paper = "Esser et al. 2020, Learned step size quantization"

    keeps_ranges = False

    learns_offset: ClassVar[bool] = False
    takes_dynamic: ClassVar[bool] = False

    def _prepare_wrappers(self) -> None:
        super()._prepare_wrappers()
        for wrapper in self.get_modules_wrapper():
            for target in ACTIVATIONS:
                if target in wrapper.roles:
                    self._learn(wrapper, f"{target}_scale", _SMALLEST)
                    if self.learns_offset:
                        wrapper.set_attribute(
                            f"{target}_offset", self._backend.tensor(0.0, wrapper)
                        )
                        self._learn(wrapper, f"{target}_offset")
            if "weight" in wrapper.roles:
                self._fix_weight(wrapper)

    def _learn(self, wrapper: Any, name: str, at_least: float | None = None) -> None:
        """Make the scale or offset of an activation trainable; the first batch initializes it."""
        value = getattr(wrapper, name)
        delattr(wrapper, name)
        if self._backend.keeps_bounds:
            value = namespace(value).zeros_like(value) + (at_least or 0.0)
        wrapper.set_attribute(name, self._backend.parameter(value, at_least))

    def _fix_weight(self, wrapper: Any) -> None:
        """Make the scale of a weight trainable."""
        scale, zero = self._first_scale(wrapper)
        wrapper.set_attribute("weight_scale", self._backend.parameter(scale, _SMALLEST))
        wrapper.set_attribute("weight_zero_point", zero)
        wrapper.weight_is_fixed = True

    def _first_scale(self, wrapper: Any) -> tuple[Tensor, Tensor]:
        """Return the initial scale of a weight, from the mean of its unpruned entries."""
        grid = self.grid(wrapper, "weight")
        weight = self._backend.masked_weight(wrapper)
        factor = self._fold_factor(wrapper)
        weight = weight if factor is None else weight * factor
        xp = namespace(weight)
        kept = xp.to_float(weight != 0, like=weight)
        size = mean_magnitude(weight, grid) / xp.positive(mean_magnitude(kept, grid))
        found = covering(weight, grid)
        if not grid.is_symmetric:  # the zero point depends on the scale
            return found.scale, found.zero_point
        return xp.positive(2 * size / math.sqrt(grid.high)), found.zero_point

    def _restart_weights(self, wrappers: Iterable[Any]) -> None:
        for wrapper in wrappers:
            if "weight" in wrapper.roles:
                scale, zero = self._first_scale(wrapper)
                namespace(scale).assign(wrapper.weight_scale, scale)
                wrapper.set_attribute("weight_zero_point", zero)

    def _update_delays(self) -> None:
        """Reinitialize the scales from the weights at the start of quantization."""
        wrappers = self.get_modules_wrapper() if self._is_prepared else []
        waiting = [w for w in wrappers if not w.is_on and w.weight_is_fixed]
        super()._update_delays()
        self._restart_weights(wrapper for wrapper in waiting if wrapper.is_on)

    def _take_flow(self, flow: Any) -> None:
        """Reinitialize folded weights, and freeze scales of activations that another layer quantizes."""
        super()._take_flow(flow)
        self._restart_weights(w for w in self.get_modules_wrapper() if w.norm)
        for wrapper in self.get_modules_wrapper():
            for target, placement in wrapper.places.items():
                for name in (f"{target}_scale", f"{target}_offset"):
                    if placement["by"] is not None and hasattr(wrapper, name):
                        held = getattr(wrapper, name)
                        delattr(wrapper, name)
                        wrapper.set_attribute(name, namespace(held).detach(held))

    def _round_weight(self, weight: Tensor, wrapper: Any) -> Tensor:
        grid = self.grid(wrapper, "weight")
        xp = namespace(weight)
        scale = spread(wrapper.weight_scale, xp.shape(weight), grid)
        share = xp.size(weight) / xp.size(wrapper.weight_scale)
        wide = xp.widen(weight)
        zero = None
        if not (grid.is_symmetric and grid.is_signed):
            zero = spread(wrapper.weight_zero_point, xp.shape(weight), grid)
        rounded = xp.learned_fake_quantize(
            wide, scale, grid.low, grid.high, 1 / math.sqrt(share * grid.high), zero
        )
        return xp.to_float(rounded, like=weight)

    def _round_activation(self, tensor: Tensor, wrapper: Any, target: str) -> Tensor:
        grid = self.grid(wrapper, target)
        xp = namespace(tensor)
        wide = xp.widen(tensor)
        rounded = xp.learned_fake_quantize(
            wide,
            getattr(wrapper, f"{target}_scale"),
            grid.low,
            grid.high,
            (xp.sample_size(tensor) * grid.high) ** -0.5,
            getattr(wrapper, f"{target}_zero_point"),
            getattr(wrapper, f"{target}_offset", None),
        )
        return xp.to_float(rounded, like=tensor)

    def follow(self, tensor: Tensor, wrapper: Any, target: str) -> None:
        """Initialize the scale of an activation from the first batch that is quantized."""
        is_known, is_graph = getattr(wrapper, f"{target}_is_known"), self._backend.is_tracing()
        if not wrapper.is_on or (is_known and not is_graph):
            return
        xp = namespace(tensor)
        seen = xp.widen(xp.detach(tensor))
        if is_graph:  # the graph runs for all batches and tests for the first one itself
            held = [getattr(wrapper, f"{target}_{end}") for end in ("low", "high")]
            is_new = (held[0] == 0) & (held[1] == 0)
            none = [xp.zeros_like(held[0])] * 3
            low, high, size = xp.cond(is_new, lambda: self._measure(seen), lambda: none)
            self.start(wrapper, target, low, high, size, when=is_new & xp.isfinite(size))
        else:
            low, high, size = self._measure(seen)
            if not xp.is_certain(xp.isfinite(size)):
                return  # a batch with NaN or infinity: wait for the next one
            self.start(wrapper, target, low, high, size)
        if not is_known:
            setattr(wrapper, f"{target}_is_known", True)

    def _measure(self, seen: Tensor) -> list[Tensor]:
        """Return the range and mean magnitude of an activation, averaged over all processes."""
        xp = namespace(seen)
        found = [*xp.range_of(seen, None), xp.mean_abs(seen)]
        self._backend.average(found)
        return found

    def start(
        self, wrapper: Any, target: str, low: Tensor, high: Tensor, size: Tensor, when: Any = None
    ) -> None:
        """Set scale and zero point from the range and the mean magnitude of an activation.

        With ``when``, a flag in a graph, only if it is true.
        """
        xp, grid = namespace(low), self.grid(wrapper, target)
        widest, zero = fit(low, high, grid)
        scale = xp.positive(2 * size / math.sqrt(grid.high))
        scale = xp.where(scale < widest, scale, widest)
        values = {"low": low, "high": high, "scale": scale, "zero_point": zero}
        if self.learns_offset:
            values["offset"] = (grid.low - zero) * scale
        for name, value in values.items():
            held = getattr(wrapper, f"{target}_{name}")
            xp.assign(held, value if when is None else xp.where(when, value, held))

    def _held(self, wrapper: Any, target: str) -> QParams:
        grid: Grid = self.grid(wrapper, target)
        scale = getattr(wrapper, f"{target}_scale")
        xp = namespace(scale)
        scale = xp.detach(scale)
        zero = getattr(wrapper, f"{target}_zero_point")
        if self.learns_offset and target != "weight":
            offset = xp.detach(getattr(wrapper, f"{target}_offset"))
            zero = xp.offset_to_zero_point(scale, offset, grid.low, grid.high)
        return QParams(scale, zero, grid)

    def set_range(self, wrapper: Any, target: str, low: float, high: float) -> None:
        """Initialize the scale of a layer's input or output from a known range."""
        super().set_range(wrapper, target, low, high)
        if self.learns_offset:
            wrapper.set_attribute(f"{target}_offset", self._backend.tensor(min(low, 0.0), wrapper))

    def _after_step(self) -> None:
        """Keep the scales positive, and equal in all processes."""
        super()._after_step()
        if self._backend.keeps_bounds:
            return
        wrappers = self.get_modules_wrapper()
        learned = [p for wrapper in wrappers for p in wrapper.parameters()]
        if learned and not self._backend.is_joining(self.bound_model):
            self._backend.average(learned)
        for wrapper in wrappers:
            for target in ("weight", *ACTIVATIONS):
                scale = getattr(wrapper, f"{target}_scale", None)
                if scale is not None:
                    xp = namespace(scale)
                    xp.assign(scale, xp.clip(xp.detach(scale), _SMALLEST, None))


@register_quantizer("lsq_plus", "LsqPlusQuantizer")
class LSQPlusQuantizer(LSQQuantizer):
    """Learn the scale and the offset of each activation, and the scale of each weight.

    The offset moves the zero point, which remains an integer, so that zero is exact.
    """

    paper = "Bhalgat et al. 2020, LSQ+"

    learns_offset = True
