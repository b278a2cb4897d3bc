"""PTQQuantizer: integer quantization without training, from a few batches of data.

Batches are run through the model to fix the ranges of activations; the scales of weights cover their
range, or clip it where that reduces the error. Options recover accuracy at low bit widths:

- ``equalize``: equal ranges of weights from layer to layer (Nagel et al., 2019);
- ``smooth``: outliers of activations moved into the weights (SmoothQuant, Xiao et al., 2023);
- ``adaround``: rounding up or down so as to preserve a layer's output (Nagel et al., 2020);
- ``bias_correction``: the mean of each output channel as in float (Nagel et al., 2019).

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> quantizer = PTQQuantizer(model, [{"op_types": ["Linear"]}], weights="mse", bias_correction=True)
>>> model = quantizer.compress()
>>> quantizer.calibrate([torch.randn(16, 4) for _ in range(4)])
>>> quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType.INPUT).grid.dtype
'uint8'
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, ClassVar

from lilliput.config.layer import QuantType as QuantType
from lilliput.config.select import Selection
from lilliput.core.checks import checked_choice, checked_flag, checked_number
from lilliput.errors import ConfigError, Problem, StageError, nearest
from lilliput.ops.fakequant import covering
from lilliput.ops.namespace import namespace
from lilliput.ops.qparams import QParams
from lilliput.quantization.placed import ACTIVATIONS
from lilliput.quantization.ranges import RangeQuantizer
from lilliput.quantization.weight_scales import best_scales
from lilliput.registry import register_quantizer

log = logging.getLogger("lilliput")

_KEPT_ROWS = 1024
_QUICK = "quick"
_ADAROUND = {
    "steps": (int, 1, 10**7),
    "batch_size": (int, 1, 10**6),
    "positions": (int, 1, 10**7),
    "learning_rate": (float, 0, 1),
    "regularization": (float, 0, 10**3),
    "warm_up": (float, 0, 1),
}


@register_quantizer("ptq", "ObserverQuantizer", "PtqQuantizer")
class PTQQuantizer(RangeQuantizer):
    """Quantize a trained model by calibration.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs
        See :class:`~lilliput.quantization.ranges.RangeQuantizer`. Rules may name an ``observer``:
        'mse' (the default), 'minmax', 'ema', 'percentile' or 'kl'.
    weights : {'minmax', 'mse'}
        Whether the scales of weights cover them, or minimize the squared error; they are computed in
        ``compress()`` and again in each :meth:`calibrate`, so load the weights before.
    equalize : bool
        Rescale the channels between pairs of layers with only a batch norm, a ReLU, a ReLU6 or
        pooling in between, so that their weights have equal ranges. The float model computes the
        same; channels that come close to the limit of a ReLU6 in calibration are not rescaled.
    smooth : float, optional
        Divide the channels after each LayerNorm or RMSNorm that only quantized linear layers read, and
        multiply the weights that read them: 0 equalizes the weights, 1 the activations, 0.5
        is usual. The float model computes the same.
    adaround : bool or dict
        Learn whether to round each weight up or down. A dict may have ``steps`` (1000 per layer),
        ``batch_size`` (256 positions per step), ``positions`` (8192, sampled per layer),
        ``learning_rate`` (0.05), ``regularization`` (10) and ``warm_up`` (0.2, the share of steps
        without it).
    bias_correction : bool or "quick"
        Give each output channel the mean that it has in float, by its bias or that of the batch norm
        after it. ``is_bias_correction`` in NNI. It takes a run of the batches per layer; ``"quick"`` takes
        one for all, after which means differ a little as far as batches do.

    Notes
    -----
    All but ``weights`` change parameters of the model in place, and need several passes: they keep the
    first batches of :meth:`calibrate`, up to 1024 samples. They require a single process, without
    DistributedDataParallel. :meth:`strip` restores the parameters bit by bit, unless they were trained
    or loaded after calibration. To use the quantized model elsewhere, save its state dict along with
    :meth:`state`, and load both into a model with a quantizer of the same options.
    """

    paper = "Nagel et al. 2019, 2020; Xiao et al. 2023 (its options)"

    default_observer: ClassVar[str] = "mse"

    weights: str = "minmax"
    equalize: bool = False
    smooth: float | None = None
    adaround: Mapping[str, Any] | None = None
    bias_correction: bool | str = False
    _refinement: Any = None
    _is_outdated: bool = False
    _is_loaded: bool = False

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        weights: str = "minmax",
        equalize: bool = False,
        smooth: float | None = None,
        adaround: bool | Mapping[str, Any] = False,
        bias_correction: bool | str = False,
        is_bias_correction: bool | None = None,
    ) -> None:
        self.weights = checked_choice("weights", weights, ("minmax", "mse"))
        self.equalize = checked_flag("equalize", equalize)
        self.smooth = _check_alpha(smooth)
        self.adaround = _check_adaround(adaround)
        asked = bias_correction if is_bias_correction is None else is_bias_correction
        if not isinstance(asked, bool) and not (isinstance(asked, str) and asked == _QUICK):
            raise ConfigError(
                f"bias_correction: received {asked!r}, expected True, False or {_QUICK!r}."
            )
        self.bias_correction = asked
        super().__init__(model, config_list, optimizer, example_inputs)

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return a problem for each option without a rule that it applies to."""
        problems = super()._find_problems(selection)
        if self._fixes_weights and not any(
            "weight" in self.targets_of(layer) for layer in selection.chosen
        ):
            option = "adaround" if self.adaround is not None else "weights='mse'"
            text = "no rule quantizes a weight; add 'weight' to quant_types, or omit the option."
            problems.append(Problem(option, text))
        return problems

    def calibrate(
        self,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None = None,
        checkpoint: Any = None,
        progress: bool = True,
    ) -> None:
        """As in :meth:`RangeQuantizer.calibrate`, with the steps of the options before and after.

        With options that need several passes, the first batches are kept, up to 1024 samples.
        """
        if not self.is_wrapped:
            raise StageError("calibrate() was called before compress(); call compress() first.")
        if not self._refines:
            super().calibrate(batches, forward, checkpoint, progress)
            self._fix_weights()
            return
        kept, batches = self._keep(batches)
        self._undo()
        self._forget()
        forward = forward or self._backend.feeder(self.example_inputs)
        refinement = self._backend.refinement(self, kept, forward)
        try:
            self._rescale(refinement)
            super().calibrate(batches, forward, checkpoint, progress)
            self._fix_weights()
            self._reconstruct(refinement, progress)
        except BaseException:
            refinement.undo()
            self._forget()
            self._fix_by_weights_alone()
            raise
        refinement.finish()
        self._refinement = refinement

    def _rescale(self, refinement: Any) -> None:
        if self.equalize:
            refinement.equalize()
        if self.smooth is not None:
            refinement.smooth(self.smooth)

    def _reconstruct(self, refinement: Any, progress: bool) -> None:
        if self.bias_correction:
            refinement.note_means()
        if self.adaround is not None:
            refinement.round(dict(self.adaround), progress)
        if self.bias_correction:
            refinement.correct_biases(progress, self.bias_correction == _QUICK)

    def weight_rounding(self, wrapper: Any) -> tuple[QParams, Any]:
        """Return the fixed grid of a layer's weight, and its factor before rounding."""
        return self._held(wrapper, "weight"), self._fold_factor(wrapper)

    # -- fixed scales of weights ---------------------------------------------------------------------

    @property
    def _fixes_weights(self) -> bool:
        return self.weights == "mse" or self.adaround is not None

    @property
    def _refines(self) -> bool:
        options = (self.equalize, self.bias_correction, self.smooth is not None)
        return any(options) or self.adaround is not None

    def _fix_weights(self) -> None:
        for wrapper in self.get_modules_wrapper():
            if self._fixes_weights and "weight" in wrapper.roles:
                self._fix_weight(wrapper)

    def _fix_by_weights_alone(self) -> None:
        """Compute the scales that need no data, for models whose activations are not quantized."""
        for wrapper in self.get_modules_wrapper():
            is_due = self.weights == "mse" and not wrapper.weight_is_fixed
            if is_due and "weight" in wrapper.roles:
                self._fix_weight(wrapper)

    def _weight_qparams(self, wrapper: Any) -> QParams:
        if self._refines and self._refinement is None and not self._is_loaded:
            raise StageError(
                f"{self._refining()} was requested, which calibrate(batches) performs; call "
                "calibrate(batches) first, or construct the quantizer without it."
            )
        return super()._weight_qparams(wrapper)

    def _refining(self) -> str:
        """Return the first requested option that changes parameters in calibration."""
        options = {
            "equalize": self.equalize,
            "smooth": self.smooth is not None,
            "adaround": self.adaround is not None,
            "bias_correction": bool(self.bias_correction),
        }
        return next(name for name, is_asked in options.items() if is_asked)

    def _fix_weight(self, wrapper: Any) -> None:
        weight, factor = self._backend.masked_weight(wrapper), self._fold_factor(wrapper)
        weight = weight if factor is None else weight * factor
        find = best_scales if self.weights == "mse" else covering
        found = find(weight, self.grid(wrapper, "weight"))
        wrapper.set_attribute("weight_scale", found.scale)
        wrapper.set_attribute("weight_zero_point", found.zero_point)
        wrapper.weight_is_fixed = True

    def _prepare_wrappers(self) -> None:
        super()._prepare_wrappers()
        for wrapper in self.get_modules_wrapper():
            if self._fixes_weights and "weight" in wrapper.roles:
                # Created here, so that a checkpoint can be loaded into them; zero: not known yet.
                scale = covering(
                    self._backend.masked_weight(wrapper), self.grid(wrapper, "weight")
                ).scale
                for name in ("weight_scale", "weight_zero_point"):
                    wrapper.set_attribute(name, namespace(scale).zeros_like(scale))

    def _take_loaded(self, wrapper: Any) -> None:
        """Mark the ranges and scales of a loaded checkpoint as known."""
        super()._take_loaded(wrapper)
        self._is_loaded = True
        scale = getattr(wrapper, "weight_scale", None)
        if scale is not None:
            wrapper.weight_is_fixed = not bool(namespace(scale).any(scale <= 0))

    # -- attach and detach ---------------------------------------------------------------------------

    def compress(self, model: Any = None) -> Any:
        """As in :meth:`Compressor.compress`."""
        if self._is_outdated and not self.is_wrapped:
            self._is_outdated = self._is_loaded = False
            self._forget()
        compressed = super().compress(model)
        self._fix_by_weights_alone()
        return compressed

    def strip(self) -> Any:
        """As in :meth:`Compressor.strip`; parameters changed by calibration are restored."""
        model = super().strip()
        self._undo()
        return model

    def _take_state(self) -> None:
        super()._take_state()
        self._is_outdated, self._is_loaded = False, True

    def _undo(self) -> None:
        """Undo the parameter changes of the last calibration."""
        if self._refinement is None:
            return
        self._is_outdated = self._refinement.undo()
        if not self._is_outdated:
            log.warning(
                "%s: parameters were trained or loaded after calibrate() changed them; they keep their "
                "current values.",
                type(self).__name__,
            )
        self._refinement = None

    def _forget(self) -> None:
        """Discard all ranges and scales, which belong to other parameters."""
        for wrapper in self.get_modules_wrapper():
            wrapper.weight_is_fixed = False
            for target in ACTIVATIONS:
                if target in wrapper.roles:
                    setattr(wrapper, f"{target}_is_known", False)

    def _keep(self, batches: Iterable[Any]) -> tuple[list[Any], Iterable[Any]]:
        """Return the first batches as a list, and an iterable over all batches."""
        kept: list[Any] = []
        if not isinstance(batches, Iterable) or self._is_tensor(batches):
            raise ConfigError(
                f"calibrate() received {type(batches).__name__}, expected a data loader or a list."
            )
        rows, source = 0, iter(batches)
        for batch in source:
            kept.append(batch)
            rows += self._rows(batch)
            if rows >= _KEPT_ROWS:
                break
        if not kept:
            raise ConfigError(
                "calibrate() received no batches: the loader is empty, or an exhausted iterator."
            )
        return kept, chain(kept, source) if source is batches else batches

    def _rows(self, batch: Any) -> int:
        """Return how many samples a batch has, by its first tensor."""
        if self._is_tensor(batch):
            return int(batch.shape[0]) if batch.shape else 1
        items = batch.values() if isinstance(batch, Mapping) else batch
        if not isinstance(batch, (Mapping, list, tuple)) or not items:
            return 1
        return self._rows(next(iter(items)))


def _check_alpha(alpha: Any) -> float | None:
    if alpha is None:
        return None
    return checked_number("smooth", alpha, "a number from 0 to 1, or None", lambda x: 0 <= x <= 1)


def _check_adaround(given: Any) -> Mapping[str, Any] | None:
    if isinstance(given, bool):
        return {} if given else None
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"adaround: received {given!r}, expected True, False or a dict of settings."
        )
    for key, value in given.items():
        if key not in _ADAROUND:
            known = ", ".join(_ADAROUND)
            raise ConfigError(
                f"adaround: received {key!r}.{nearest(key, _ADAROUND)} Known: {known}."
            )
        kind, low, high = _ADAROUND[key]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if (
            not is_number
            or (kind is int and not isinstance(value, int))
            or not low <= value <= high
        ):
            what = "whole number" if kind is int else "number"
            raise ConfigError(
                f"adaround: {key} received {value!r}, expected a {what} from {low} to {high}."
            )
    return dict(given)
