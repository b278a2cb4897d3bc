"""The base of quantizers that round to an integer grid: ranges, grids, and where they are applied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.config.select import Selection
from lilliput.config.spec import QuantRule, Rule
from lilliput.errors import ConfigError, Problem, StageError
from lilliput.ops.fakequant import covering, fake_quantize, ranges
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, Groups, QParams, fit, spread
from lilliput.quantization.calibration import calibrate
from lilliput.quantization.dynamic import dynamic_problems, is_widened, round_widened, widened
from lilliput.quantization.embeddings import take_embeddings
from lilliput.quantization.grids import grid_for
from lilliput.quantization.observers import OBSERVERS, make_observer
from lilliput.quantization.placed import ACTIVATIONS, PlacedQuantizer

log = logging.getLogger("lilliput")

_WITHOUT_FLOAT_INPUT = frozenset({"Embedding", "EmbeddingBag", "RNNBase", "RNNCellBase"})
_CONVOLUTIONS = frozenset({"_ConvNd"})


def _check_observer(name: Any) -> Any:
    if isinstance(name, str):
        try:
            make_observer(name)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("observer: ")) from None
    return name


ObserverName = Annotated[str, AfterValidator(_check_observer)]


def check_count(name: str, value: Any) -> None:
    """Raise unless an argument is an integer of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name}: received {value!r}, expected an integer, 0 or more.")


class RangeRule(QuantRule):
    """All quantization keys, and how calibration determines ranges."""

    observer: ObserverName | dict[Literal["input", "output"], ObserverName] | None = Field(
        None, description=f"How calibration determines ranges: {', '.join(OBSERVERS)}."
    )

    @model_validator(mode="after")
    def _check_sides(self) -> RangeRule:
        for target in () if self.exclude else ("weight", *ACTIVATIONS):
            is_asked = self.quant_types is None or target in self.quant_types
            if is_asked and self._of("quant_bits", target) == 1:
                grid = grid_for(self.settings(), target)
                if grid.is_symmetric or grid.is_narrow:
                    raise ValueError(
                        f"'quant_bits' of {target!r} is 1: two levels need quant_scheme 'affine' and no "
                        "narrow_range."
                    )
        return self


class RangeQuantizer(PlacedQuantizer):
    """Round tensors to integer grids that cover known ranges.

    Weights are always covered; the ranges of activations come from training, from
    :meth:`calibrate`, or are learned, depending on the subclass.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``quant_types``, ``quant_bits``,
        ``quant_scheme``, ``quant_dtype``, ``granularity``, ``group_size`` and ``narrow_range``. By
        default weights are int8 with a scale per channel, activations uint8: the input of each layer
        and the output of convolutions, on Keras also that of dense layers (required by LiteRT).
    example_inputs : optional
        Inputs of the model: a tensor, a tuple or a dict. With it, activations are quantized
        where runtimes expect it, after norm and ReLU, and each tensor once; see
        :mod:`~lilliput.graph.placement`. Functional and Sequential Keras models do not need it,
        because their graph is known.
    quant_start_step : int
        Steps to train before quantization starts; a rule may override it.
    """

    rule: ClassVar[type[Rule]] = RangeRule
    keeps_zero = True
    counts_levels = False
    quant_grad = None
    tracked = ("current_step",)
    default_observer: ClassVar[str] = "minmax"
    takes_dynamic: ClassVar[bool] = True  # whether inputs may have the range of each call

    example_inputs: Any = None
    quant_start_step: int = 0
    current_step: int = 0
    sample_inputs: tuple[Any, ...] = ()  # (args, kwargs) of the first calls in calibration
    _is_prepared: bool = False

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        quant_start_step: int = 0,
    ) -> None:
        check_count("quant_start_step", quant_start_step)
        self.example_inputs = example_inputs
        self.quant_start_step = quant_start_step
        super().__init__(model, config_list, optimizer)

    # -- tensors to quantize -----------------------------------------------------------------------

    def _refine(self, selection: Selection) -> Selection:
        """Add embeddings that would dominate the file; see :mod:`~lilliput.quantization.embeddings`."""
        return take_embeddings(super()._refine(selection), self.targets_of)

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return a problem for each rule that requests dynamic ranges without kernels for them."""
        types = self._backend.dynamic_inputs if self.takes_dynamic else frozenset()
        return super()._find_problems(selection) + dynamic_problems(
            selection, self.targets_of, types
        )

    def default_targets(self, layer: LayerInfo) -> list[str]:
        """Return the tensors to quantize for a layer to run in integers."""
        bits = layer.config.get("quant_bits")
        if isinstance(bits, Mapping):
            return list(bits)
        if layer.weight_name is None:
            return ["output"]
        # A head that is tied to an embedding still has float inputs, which may be dynamic.
        has_head = layer.types & self._backend.dynamic_inputs
        is_dynamic = bool(has_head) and grid_for(layer.config, "input").is_dynamic
        if layer.is_bypassed or (layer.types & _WITHOUT_FLOAT_INPUT and not is_dynamic):
            return ["weight"]
        is_whole = layer.types & self._backend.integer_outputs
        return ["weight", "input", *(["output"] if is_whole else [])]

    def observer_of(self, wrapper: Any, target: str) -> Any:
        """Return the observer that determines the range of an input or output in calibration."""
        chosen = wrapper.config.get("observer")
        chosen = chosen.get(target) if isinstance(chosen, Mapping) else chosen
        return self.default_observer if chosen is None else chosen

    def coarsen_weight(self, wrapper: Any, factors: Tensor) -> None:
        """Multiply the scales of a layer's weight from now on, by one factor per output channel."""
        grid = self.grid(wrapper, "weight")
        xp = namespace(factors)
        if grid.axis != wrapper.layer_info.out_axis or grid.group_size is not None:
            factors = xp.max(factors)
        held = wrapper.weight_scale if wrapper.weight_is_fixed else wrapper.weight_coarse
        xp.assign(held, xp.detach(held) * factors)

    # -- the simulation ------------------------------------------------------------------------------

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the weight on its grid."""
        if not wrapper.is_on:
            return weight
        factor = self._fold_factor(wrapper)
        if factor is None:
            return self._round_weight(weight, wrapper)
        return self._round_weight(weight * factor, wrapper) / factor

    def quantize_input(  # type: ignore[override]
        self, tensor: Tensor, wrapper: Any, **kwargs: Any
    ) -> Tensor:
        """Return the input on its grid."""
        return self._activation(tensor, wrapper, "input")

    def quantize_output(self, output: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the output on its grid."""
        return self._activation(output, wrapper, "output")

    def _activation(self, tensor: Tensor, wrapper: Any, target: str) -> Tensor:
        xp = namespace(tensor)
        if not xp.size(tensor):  # a batch without samples has no range
            return tensor
        if (grid := self.grid(wrapper, target)).is_dynamic:
            found = covering(xp.detach(tensor), grid)
            return fake_quantize(tensor, found) if wrapper.is_on else tensor
        if wrapper.training and not self._backend.is_recomputing():
            self.follow(tensor, wrapper, target)
        if not (wrapper.is_on and getattr(wrapper, f"{target}_is_known")):
            return tensor
        return self._round_activation(tensor, wrapper, target)

    def follow(self, tensor: Tensor, wrapper: Any, target: str) -> None:
        """Update the range from an activation in training."""

    def _round_activation(self, tensor: Tensor, wrapper: Any, target: str) -> Tensor:
        return fake_quantize(tensor, self._held(wrapper, target))

    def _round_weight(self, weight: Tensor, wrapper: Any) -> Tensor:
        if wrapper.weight_is_fixed:
            rounded = fake_quantize(weight, self._held(wrapper, "weight"))
        else:
            qparams = self._cover_weight(namespace(weight).detach(weight), wrapper)
            rounded = fake_quantize(weight, qparams, covers=True)
        axis = self._widened_axis(wrapper)
        return rounded if axis is None else round_widened(rounded, axis)

    def _widened_axis(self, wrapper: Any) -> int | None:
        """Return the output axis of a weight in groups that is widened."""
        if "input" not in wrapper.roles:
            return None
        grid = self.grid(wrapper, "weight")
        return 1 - (grid.axis or 0) % 2 if is_widened(grid, self.grid(wrapper, "input")) else None

    def _cover_weight(self, weight: Tensor, wrapper: Any) -> QParams:
        found = covering(weight, self.grid(wrapper, "weight"))
        return QParams(found.scale * wrapper.weight_coarse, found.zero_point, found.grid)

    def _held(self, wrapper: Any, target: str) -> QParams:
        scale, zero = (getattr(wrapper, f"{target}_{name}") for name in ("scale", "zero_point"))
        return QParams(scale, zero, self.grid(wrapper, target))

    # -- for exporters and reports -------------------------------------------------------------------

    def qparams(self, wrapper: Any, quant_type: QuantType) -> QParams | None:
        """Return the grid and the scales of a layer's tensor.

        An input or output that another layer quantizes has the grid of that layer.
        """
        target = quant_type.value
        if not wrapper.is_on:
            raise StageError(
                f"layer {wrapper.name!r} is not quantized before step "
                f"{wrapper.config.get('quant_start_step', self.quant_start_step)}; continue training first."
            )
        if target != "weight":
            other, target = self._who_quantizes(wrapper, target)
            is_dynamic = self.grid(other, target).is_dynamic
            if not (is_dynamic or getattr(other, f"{target}_is_known")):
                raise StageError(
                    f"the range of {target} of layer {other.name!r} is not known yet; call "
                    "calibrate(batches), or train, first."
                )
            return self._held(other, target)
        return self._weight_qparams(wrapper)

    def _weight_qparams(self, wrapper: Any) -> QParams:
        grid = self.grid(wrapper, "weight")
        weight = self._backend.masked_weight(wrapper)
        factor = self._fold_factor(wrapper)
        if wrapper.weight_is_fixed:
            held = self._held(wrapper, "weight")
        else:
            held = self._cover_weight(weight if factor is None else weight * factor, wrapper)
        if (wide := self._widened_axis(wrapper)) is not None:
            rounded = fake_quantize(weight, held)
            groups = Groups(held.to_integers(rounded), held)
            return replace(widened(rounded, wide), groups=groups)
        if factor is None:
            return held
        # The layer's weight is divided by the factor again, which gives one scale per channel.
        axis = wrapper.layer_info.out_axis
        xp = namespace(weight)
        per_channel = Grid(grid.bits, grid.is_signed, grid.is_symmetric, grid.is_narrow, axis)
        scale = held.scale / xp.abs(xp.flatten(factor))
        return QParams(scale, xp.zeros_like(scale), per_channel)

    def _fold_factor(self, wrapper: Any) -> Any:
        """Return the factor of a batch norm on the weight if quantization depends on it.

        It does not with one scale per channel, where the factor goes into the scale; with groups or a zero
        point, the file gets one scale per channel.
        """
        grid = self.grid(wrapper, "weight")
        layer = wrapper.layer_info
        is_plain = grid.is_symmetric and grid.is_signed and grid.axis is None
        is_conv = bool(layer.types & _CONVOLUTIONS) and layer.out_groups == 1
        if not (wrapper.norm and is_plain and is_conv):
            return None
        factor = self._backend.norm_factor(wrapper)
        # A channel that the norm multiplies by zero is rounded like the widest one.
        xp = namespace(factor)
        if xp.size(factor) != layer.shape[layer.out_axis]:
            return None  # several channels share a slice of the weight, with different factors
        widest = xp.max(xp.abs(factor))
        widest = xp.where(widest > 0, widest, xp.ones_like(widest))
        factor = xp.where(factor == 0, widest, factor)
        per_channel = Grid(8, True, True, axis=wrapper.layer_info.out_axis)
        return spread(factor, wrapper.layer_info.shape, per_channel)

    # -- workflow ------------------------------------------------------------------------------------

    def calibrate(
        self,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None = None,
        checkpoint: Any = None,
        progress: bool = True,
    ) -> None:
        """Run batches without training on them, and fix the ranges of activations.

        Parameters
        ----------
        batches : iterable
            A data loader or a list.
        forward : callable, optional
            ``forward(model, batch)``. By default the model is called with a tensor or dict, and a tuple
            is either its arguments, as in ``example_inputs``, or ``(inputs, targets)``: only the parts
            that ``example_inputs`` or ``forward`` of the model has are passed, not the targets.
        checkpoint : path, optional
            A file for intermediate statistics; if the job is killed, calling this again with the
            same batches continues from there.
        progress : bool
            Whether to show a progress bar on a terminal.
        """
        if not self.is_wrapped:
            raise StageError("calibrate() was called before compress(); call compress() first.")
        for wrapper in self.get_modules_wrapper():
            if "weight" in wrapper.roles:
                wrapper.set_attribute("weight_coarse", self._fine(wrapper))
        forward = forward or self._backend.feeder(self.example_inputs)
        calibrate(self, batches, forward, checkpoint, progress)

    def _bind(self) -> None:
        super()._bind()
        self._is_prepared = False

    def _take_state(self) -> None:
        super()._take_state()
        self._update_delays()

    def step(self) -> None:
        """Count the steps, and start to quantize when due."""
        self.current_step += 1
        self._update_delays()

    def _update_delays(self) -> None:
        for wrapper in self.get_modules_wrapper():
            start = wrapper.config.get("quant_start_step", self.quant_start_step)
            wrapper.is_on = self.current_step >= start

    def _prepare(self) -> None:
        super()._prepare()
        if not self._is_prepared:
            self._is_prepared = True
            self._prepare_wrappers()
            flow = self._known_flow()
            if flow is not None:
                self._take_flow(flow)

    def _known_flow(self) -> Any:
        if self.example_inputs is None:
            return self._backend.known_flow(self.bound_model)
        return self._backend.flow(self.bound_model, self.example_inputs)

    def _prepare_wrappers(self) -> None:
        for wrapper in self.get_modules_wrapper():
            wrapper.places, wrapper.norm = {}, ""
            wrapper.set_attribute("placed", self._backend.tensor(0.0, wrapper))
            wrapper.is_on = wrapper.weight_is_fixed = False
            if "weight" in wrapper.roles:
                wrapper.set_attribute("weight_coarse", self._fine(wrapper))
            for target in ACTIVATIONS:
                if target in wrapper.roles:
                    setattr(wrapper, f"{target}_is_known", False)
                    for name in ("low", "high", "scale", "zero_point"):
                        value = 1.0 if name == "scale" else 0.0
                        wrapper.set_attribute(
                            f"{target}_{name}", self._backend.tensor(value, wrapper)
                        )
        self._update_delays()

    def _fine(self, wrapper: Any) -> Tensor:
        """Return factors of one for the scales of a weight."""
        weight, grid = self._backend.masked_weight(wrapper), self.grid(wrapper, "weight")
        one = self._backend.tensor(1.0, wrapper)
        if grid.axis != wrapper.layer_info.out_axis or grid.group_size is not None:
            return one
        return namespace(weight).ones_like(ranges(weight, grid)[0]) * one

    def _take_loaded(self, wrapper: Any) -> None:
        """Mark the ranges of a loaded checkpoint as known."""
        agrees = self._agrees(wrapper)
        for target in ACTIVATIONS:
            if target in wrapper.roles:
                low, high = (getattr(wrapper, f"{target}_{end}") for end in ("low", "high"))
                setattr(wrapper, f"{target}_is_known", agrees and bool(low != 0 or high != 0))

    def set_range(self, wrapper: Any, target: str, low: float, high: float) -> None:
        """Fix the range of a layer's input or output."""
        backend, grid = self._backend, self.grid(wrapper, target)
        bounds = backend.tensor(low, wrapper), backend.tensor(high, wrapper)
        scale, zero = fit(*bounds, grid)
        for name, value in zip(
            ("low", "high", "scale", "zero_point"), (*bounds, scale, zero), strict=True
        ):
            wrapper.set_attribute(f"{target}_{name}", value)
        setattr(wrapper, f"{target}_is_known", True)
