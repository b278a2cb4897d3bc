"""The base of quantizers that round to an integer grid: ranges, grids, and where they are applied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.config.spec import QuantRule, QuantTarget, Rule
from lilliput.core.quantizer import Quantizer
from lilliput.core.state import CompressionState
from lilliput.errors import ConfigError, StageError
from lilliput.ops.fakequant import covering, fake_quantize
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams, fit, spread
from lilliput.quantization.calibration import calibrate
from lilliput.quantization.grids import grid_for
from lilliput.quantization.observers import OBSERVERS, make_observer
from lilliput.quantization.placement import Layer, place

log = logging.getLogger("lilliput")

_WITHOUT_FLOAT_INPUT = frozenset({"Embedding", "EmbeddingBag", "RNNBase", "RNNCellBase"})
_CONVOLUTIONS = frozenset({"_ConvNd"})
ACTIVATIONS = ("input", "output")


def _check_observer(name: Any) -> Any:
    if isinstance(name, str):
        make_observer(name)
    return name


ObserverName = Annotated[str, AfterValidator(_check_observer)]


class RangeRule(QuantRule):
    """All of the quantization keys, and how ranges are found in calibration."""

    observer: ObserverName | dict[QuantTarget, ObserverName] | None = Field(
        None, description=f"How calibration finds ranges: {', '.join(OBSERVERS)}."
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


class RangeQuantizer(Quantizer):
    """Round tensors to integer grids that cover known ranges.

    Weights are covered as they are; the ranges of activations come from training, from
    :meth:`calibrate`, or are learned: that is what subclasses differ in.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules hold ``quant_types``, ``quant_bits``,
        ``quant_scheme``, ``quant_dtype``, ``granularity``, ``group_size`` and ``narrow_range``. By
        default weights are int8 with a scale per channel, activations uint8: the input of each layer
        and the output of convolutions.
    example_inputs : optional
        What the model is called with: a tensor, a tuple or a dict. With it, activations are quantized
        where runtimes look for it, after norm and ReLU, and each tensor once; see
        :mod:`~lilliput.quantization.placement`. ``dummy_input`` in NNI.
    quant_start_step : int
        Steps to train before quantization begins; a rule may say otherwise.
    """

    rule: ClassVar[type[Rule]] = RangeRule
    keeps_zero = True
    counts_levels = False
    quant_grad = None
    tracked = ("current_step",)
    default_observer: ClassVar[str] = "minmax"

    example_inputs: Any = None
    quant_start_step: int = 0
    current_step: int = 0
    sample_batches: tuple[Any, ...] = ()  # the first ones of the last calibration
    _observers: Mapping[tuple[str, str], Any] | None = None
    _grids: dict[tuple[str, str], Grid] | None = None
    _sites: tuple[Any, ...] = ()
    _is_placed: bool = False
    _is_prepared: bool = False

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        quant_start_step: int = 0,
        *,
        dummy_input: Any = None,
    ) -> None:
        if isinstance(quant_start_step, bool) or not isinstance(quant_start_step, int):
            raise ConfigError(f"quant_start_step: received {quant_start_step!r}, expected a count.")
        self.example_inputs = dummy_input if example_inputs is None else example_inputs
        self.quant_start_step = quant_start_step
        super().__init__(model, config_list, optimizer)

    # -- what is quantized -------------------------------------------------------------------------

    def default_targets(self, layer: LayerInfo) -> list[str]:
        """Return what has to be quantized for a layer to run in integers."""
        bits = layer.config.get("quant_bits")
        if isinstance(bits, Mapping):
            return list(bits)
        if layer.weight_name is None:
            return ["output"]
        if layer.is_bypassed or layer.types & _WITHOUT_FLOAT_INPUT:
            return ["weight"]
        return ["weight", "input", *(["output"] if layer.types & _CONVOLUTIONS else [])]

    def grid(self, wrapper: Any, target: str) -> Grid:
        """Return the integers that a layer's weight, input or output is rounded to."""
        if self._grids is None:
            self._grids = {}
        key = (wrapper.name, target)
        if key not in self._grids:
            config = wrapper.config
            if target == "weight" and hasattr(wrapper, "weight_bits"):
                config = {**config, "quant_bits": wrapper.weight_bits}
            self._grids[key] = grid_for(config, target, wrapper.layer_info)
        return self._grids[key]

    def observer_of(self, wrapper: Any, target: str) -> Any:
        """Return by which observer calibration finds the range of an input or output."""
        chosen = wrapper.config.get("observer")
        chosen = chosen.get(target) if isinstance(chosen, Mapping) else chosen
        return self.default_observer if chosen is None else chosen

    def reduce_bits(self, wrapper: Any, bits: int) -> None:
        """Give the weight of one layer fewer bits from now on."""
        wrapper.weight_bits = bits
        self._grids = None

    def coarsen_weight(self, wrapper: Any, factors: Tensor) -> None:
        """Multiply the scales of one layer's weight from now on, by a factor for each output channel."""
        grid = self.grid(wrapper, "weight")
        xp = namespace(factors)
        if grid.axis != wrapper.layer_info.out_axis or grid.group_size is not None:
            factors = xp.max(factors)
        if wrapper.weight_is_fixed:
            scale = wrapper.weight_scale
            xp.assign(scale, xp.detach(scale) * factors)
        else:
            before = getattr(wrapper, "weight_coarse", None)
            wrapper.set_attribute("weight_coarse", factors if before is None else before * factors)

    # -- the simulation ------------------------------------------------------------------------------

    def quantize_weight(self, weight: Tensor, wrapper: Any, **kwargs: Any) -> Tensor:
        """Return the weight on its grid."""
        if self._observers is not None or not wrapper.is_on:
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
        if not namespace(tensor).size(tensor):  # a batch without samples has no range
            return tensor
        if self._observers is not None:
            self._observers[wrapper.name, target].observe(namespace(tensor).detach(tensor))
            return tensor
        if wrapper.training:
            self.follow(tensor, wrapper, target)
        if not (wrapper.is_on and getattr(wrapper, f"{target}_is_known")):
            return tensor
        return self._round_activation(tensor, wrapper, target)

    def follow(self, tensor: Tensor, wrapper: Any, target: str) -> None:
        """Learn from an activation that is seen in training."""

    def _round_activation(self, tensor: Tensor, wrapper: Any, target: str) -> Tensor:
        return fake_quantize(tensor, self._held(wrapper, target))

    def _round_weight(self, weight: Tensor, wrapper: Any) -> Tensor:
        if wrapper.weight_is_fixed:
            return fake_quantize(weight, self._held(wrapper, "weight"))
        qparams = self._cover_weight(namespace(weight).detach(weight), wrapper)
        return fake_quantize(weight, qparams, covers=True)

    def _cover_weight(self, weight: Tensor, wrapper: Any) -> QParams:
        found = covering(weight, self.grid(wrapper, "weight"))
        coarse = getattr(wrapper, "weight_coarse", None)
        if coarse is None:
            return found
        return QParams(found.scale * coarse, found.zero_point, found.grid)

    def _held(self, wrapper: Any, target: str) -> QParams:
        scale, zero = (getattr(wrapper, f"{target}_{name}") for name in ("scale", "zero_point"))
        return QParams(scale, zero, self.grid(wrapper, target))

    # -- what exporters and reports ask ---------------------------------------------------------------

    def qparams(self, wrapper: Any, quant_type: QuantType) -> QParams | None:
        """Return the grid and the scales on which a layer's tensor lies.

        An input or output that another layer quantizes has the grid of that one.
        """
        target = quant_type.value
        if target != "weight":
            other, target = self._who_quantizes(wrapper, target)
            if not getattr(other, f"{target}_is_known"):
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
        if factor is None:
            return held
        # What the layer computes with is divided by the factor again: a scale for each channel.
        axis = wrapper.layer_info.out_axis
        xp = namespace(weight)
        per_channel = Grid(grid.bits, grid.is_signed, grid.is_symmetric, grid.is_narrow, axis)
        scale = held.scale / xp.abs(xp.flatten(factor))
        return QParams(scale, xp.zeros_like(scale), per_channel)

    def _who_quantizes(self, wrapper: Any, target: str) -> tuple[Any, str]:
        by = wrapper.places.get(target, {}).get("by")
        if by is None:
            return wrapper, target
        others = {other.name: other for other in self.get_modules_wrapper()}
        return others[by[0]], by[1]

    def _fold_factor(self, wrapper: Any) -> Any:
        """Return by what a batch norm multiplies the weight, where quantization depends on it.

        With a scale for each channel it does not: the factor goes into the scale.
        """
        if not wrapper.norm or self.grid(wrapper, "weight").axis == wrapper.layer_info.out_axis:
            return None
        factor = self._backend.norm_factor(self.bound_model, wrapper.norm)
        # A channel that the norm multiplies by zero is rounded like the widest one.
        xp = namespace(factor)
        widest = xp.max(xp.abs(factor))
        widest = xp.where(widest > 0, widest, xp.ones_like(widest))
        factor = xp.where(factor == 0, widest, factor)
        grid = Grid(8, True, True, axis=wrapper.layer_info.out_axis)
        return spread(factor, wrapper.layer_info.shape, grid)

    # -- the journey ---------------------------------------------------------------------------------

    def calibrate(
        self,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None = None,
        checkpoint: Any = None,
        progress: bool = True,
    ) -> None:
        """Run batches, without training on them, and fix the ranges of activations by what they show.

        Parameters
        ----------
        batches : iterable
            A data loader or a list.
        forward : callable, optional
            ``forward(model, batch)``; by default the model is called with the batch, or with the
            first part of a tuple.
        checkpoint : path, optional
            A file in which to note what was seen; if the job is killed, calling this again with the
            same batches goes on from there.
        progress : bool
            Whether to show a progress bar on a terminal.
        """
        if not self.is_wrapped:
            raise StageError("calibrate() came before compress(); call that first.")
        calibrate(self, batches, forward, checkpoint, progress)

    def _bind(self) -> None:
        super()._bind()
        self._is_prepared = self._is_placed = False
        self._grids = None

    def _wrap_model(self) -> None:
        super()._wrap_model()
        self._apply_places()

    def _detach_all(self) -> None:
        self._leave_sites()
        super()._detach_all()

    def load_state(self, state: CompressionState | Any) -> None:
        """As in :meth:`Compressor.load_state`."""
        super().load_state(state)
        self._grids = None
        if self.is_wrapped:
            self._apply_places()
        self._update_delays()

    def step(self) -> None:
        """Count the steps, and begin to quantize when it is time."""
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
            if self.example_inputs is not None:
                self.take_flow(self._backend.flow(self.bound_model, self.example_inputs))

    def _prepare_wrappers(self) -> None:
        for wrapper in self.get_modules_wrapper():
            wrapper.places, wrapper.norm = {}, ""
            wrapper.is_on = wrapper.weight_is_fixed = False
            for target in ACTIVATIONS:
                if target in wrapper.roles:
                    setattr(wrapper, f"{target}_is_known", False)
                    for name in ("low", "high", "scale", "zero_point"):
                        value = 1.0 if name == "scale" else 0.0
                        wrapper.set_attribute(
                            f"{target}_{name}", self._backend.tensor(value, wrapper)
                        )
        self._update_delays()

    def take_loaded(self, wrapper: Any) -> None:
        """Know the ranges that came with a checkpoint of the model."""
        for target in ACTIVATIONS:
            if target in wrapper.roles:
                low, high = (getattr(wrapper, f"{target}_{end}") for end in ("low", "high"))
                setattr(wrapper, f"{target}_is_known", bool(low != 0 or high != 0))

    def take_flow(self, flow: Any) -> None:
        """Decide where activations are quantized, now that the flow of tensors is known."""
        wrappers = {wrapper.name: wrapper for wrapper in self.get_modules_wrapper()}
        layers = []
        for name, wrapper in wrappers.items():
            paths = frozenset(p for owner in wrapper.layer_info.owners for p in owner.paths)
            layers.append(Layer(name, paths, frozenset(wrapper.roles)))
            wrapper.norm = flow.norm_after(paths)
        for (name, target), spot in place(layers, flow).items():
            wrappers[name].places[target] = {"module": spot.module, "by": spot.by}
        self._is_placed = True

    def _apply_places(self) -> None:
        """Quantize activations where it was decided, and nowhere else."""
        self._leave_sites()
        sites = []
        for wrapper in self.get_modules_wrapper():
            own = [role for role in wrapper.roles if self._is_own(wrapper, role)]
            self._backend.keep_sites(wrapper, own)
            for target, spot in wrapper.places.items():
                if spot["module"] and spot["by"] is None:
                    site = self._backend.add_site(self.bound_model, spot["module"], wrapper, target)
                    sites.append(site)
        self._sites = tuple(sites)

    @staticmethod
    def _is_own(wrapper: Any, target: str) -> bool:
        spot = wrapper.places.get(target, {"module": "", "by": None})
        return not spot["module"] and spot["by"] is None

    def _leave_sites(self) -> None:
        for site in self._sites:
            site.remove()
        self._sites = ()

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
