"""PTQQuantizer: integers without training, from a few batches of data.

Run batches through the model, and the ranges of activations are fixed by what is seen; weights are
covered, or cut where that is better on the whole. What is lost at low bits, options win back:

- ``equalize``: equal ranges of weights from layer to layer (Nagel et al., 2019);
- ``smooth``: outliers of activations moved into the weights (SmoothQuant, Xiao et al., 2023);
- ``adaround``: rounding up or down by what a layer computes (Nagel et al., 2020);
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
from lilliput.errors import ConfigError, Problem, StageError, nearest
from lilliput.ops.fakequant import by_scale, covering
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams, fit
from lilliput.quantization.placed import ACTIVATIONS
from lilliput.quantization.ranges import RangeQuantizer
from lilliput.registry import register_quantizer

log = logging.getLogger("lilliput")

_KEPT_ROWS = 1024
_SHARES = tuple(0.95**i for i in range(1, 60))  # of the range of a weight, down to a twentieth
_LOOKS = 4  # shares after which to see whether smaller ones can be better at all
_PIECE = 1 << 15  # entries that stay in the cache while all shares are tried
_NARROWEST = 64  # columns at a time: fewer are slow, whatever their length
_QUICK = "quick"
_ADAROUND = {
    "steps": (int, 1, 10**7),
    "batch_size": (int, 1, 10**6),
    "positions": (int, 1, 10**7),
    "learning_rate": (float, 0, 1),
    "regularization": (float, 0, 10**3),
    "warm_up": (float, 0, 1),
}


def best_scales(weight: Tensor, grid: Grid) -> QParams:
    """Return the scales with the smallest mean squared error of rounding a weight.

    Ranges are cut to shares of all that is there; each scale has its own best one.

    Examples
    --------
    >>> import torch
    >>> grid = Grid(bits=2, is_signed=True, is_symmetric=True, is_narrow=True)
    >>> weight = torch.tensor([0.9, -1.0, 1.1, -1.0, 1.0, 2.0])
    >>> covering(weight, grid).scale, best_scales(weight, grid).scale
    (tensor(2.), tensor(1.1376))
    """
    xp = namespace(weight)
    columns, shape = by_scale(xp.widen(weight), grid)
    entries, count = xp.shape(columns)
    width = max(_PIECE // entries, _NARROWEST)
    parts = [_best_of(columns[:, i : i + width], grid) for i in range(0, count, width)]
    scale, zero = (xp.reshape(xp.concat(x), shape) for x in zip(*parts, strict=True))
    return QParams(scale, zero, grid)


def _best_of(columns: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the best scale and zero point of each column."""
    xp = namespace(columns)
    low, high = xp.min_over(columns, 0), xp.max_over(columns, 0)
    scale, zero = fit(low, high, grid)
    smallest = _squared_error(columns, scale, zero, grid)
    for i, share in enumerate(_SHARES):
        tried, shifted = fit(low * share, high * share, grid)
        if i % _LOOKS == 0:
            excess = _cut_off(columns, tried, shifted, grid) - smallest
            if float(xp.min_over(excess, 0)) >= 0:
                break  # nor is any smaller one better
        error = _squared_error(columns, tried, shifted, grid)
        is_better = error < smallest
        smallest = xp.where(is_better, error, smallest)
        scale, zero = xp.where(is_better, tried, scale), xp.where(is_better, shifted, zero)
    return scale, zero


def _cut_off(columns: Tensor, scale: Tensor, zero: Tensor, grid: Grid) -> Tensor:
    """Return what a column loses at least with this range or any smaller one: all that is outside of it.

    Zero points are whole numbers, so that a smaller range may end up to a step further out.
    """
    xp = namespace(columns)
    low, high = (grid.low - zero - 1) * scale, (grid.high - zero + 1) * scale
    outside = xp.relu(low - columns) + xp.relu(columns - high)
    return xp.mean_over(outside * outside, 0)


def _squared_error(columns: Tensor, scale: Tensor, zero: Tensor, grid: Grid) -> Tensor:
    """Return the mean squared error of rounding each column with its own scale."""
    xp = namespace(columns)
    zeros = None if grid.is_symmetric and grid.fixed_zero_point == 0 else zero
    difference = xp.fake_quantize(columns, scale, grid.low, grid.high, zeros) - columns
    return xp.mean_over(difference * difference, 0)


@register_quantizer("ptq", "ObserverQuantizer", "PtqQuantizer")
class PTQQuantizer(RangeQuantizer):
    """Quantize a trained model by calibration.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs
        See :class:`~lilliput.quantization.ranges.RangeQuantizer`. Rules may name an ``observer``:
        'mse' (the default), 'minmax', 'ema', 'percentile' or 'kl'.
    weights : {'minmax', 'mse'}
        Whether the scales of weights cover them, or are those with the smallest squared error, found in
        ``compress()`` and once more in each :meth:`calibrate`: load the weights before.
    equalize : bool
        Rescale the channels between pairs of layers with nothing but a batch norm, a ReLU, a ReLU6 or
        pooling in between, so that their weights have equal ranges. What the model computes in float
        stays; behind a ReLU6, channels that come near its six in calibration are left as they are.
    smooth : float, optional
        Divide the channels after each LayerNorm or RMSNorm that only quantized linear layers read, and
        multiply the weights that read them: 0 makes the weights equally large, 1 the activations, 0.5
        is usual. What the model computes in float stays.
    adaround : bool or dict
        Learn whether to round each weight up or down. A dict may hold ``steps`` (1000 per layer),
        ``batch_size`` (256 positions per step), ``positions`` (8192, where each layer is looked at),
        ``learning_rate`` (0.05), ``regularization`` (10) and ``warm_up`` (0.2, the share of steps
        without it).
    bias_correction : bool or "quick"
        Give each output channel the mean that it has in float, by its bias or that of the batch norm
        after it. ``is_bias_correction`` in NNI. It takes a run of the batches per layer; ``"quick"`` takes
        one for all, after which means differ a little as far as batches do.

    Notes
    -----
    All but ``weights`` change parameters of the model in place, and need several passes: they keep the
    first batches of :meth:`calibrate`, up to 1024 samples. They work in one process, not under
    DistributedDataParallel. :meth:`strip` puts the parameters back bit for bit, unless they were trained
    or loaded after calibration. To use the quantized model elsewhere, save its state dict along with
    :meth:`state`, and load both into a model under a quantizer with the same options.
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
        if weights not in ("minmax", "mse"):
            raise ConfigError(f"weights: received {weights!r}, expected 'minmax' or 'mse'.")
        self.weights = weights
        self.equalize = _flag("equalize", equalize)
        self.smooth = _check_alpha(smooth)
        self.adaround = _check_adaround(adaround)
        asked = bias_correction if is_bias_correction is None else is_bias_correction
        self.bias_correction = asked if asked == _QUICK else _flag("bias_correction", asked)
        super().__init__(model, config_list, optimizer, example_inputs)

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return where options ask for something that no rule gives."""
        problems = super()._find_problems(selection)
        if self._fixes_weights and not any(
            "weight" in self.targets_of(layer) for layer in selection.chosen
        ):
            option = "adaround" if self.adaround is not None else "weights='mse'"
            text = (
                "no rule quantizes a weight; add 'weight' to quant_types, or leave the option out."
            )
            problems.append(Problem(option, text))
        return problems

    def calibrate(
        self,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None = None,
        checkpoint: Any = None,
        progress: bool = True,
    ) -> None:
        """As in :meth:`RangeQuantizer.calibrate`, with what the options ask for before and after.

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
        """Return the fixed grid of a layer's weight, and what it is multiplied by before rounding."""
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
        """Find the scales that need no data, for models whose activations are not quantized."""
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
        """Return the first of the options that change parameters in calibration."""
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
                # There from the start, so that a checkpoint finds them; zero: not known yet.
                scale = covering(
                    self._backend.masked_weight(wrapper), self.grid(wrapper, "weight")
                ).scale
                for name in ("weight_scale", "weight_zero_point"):
                    wrapper.set_attribute(name, namespace(scale).zeros_like(scale))

    def _take_loaded(self, wrapper: Any) -> None:
        """Mark the ranges and scales that came with a checkpoint of the model as known."""
        super()._take_loaded(wrapper)
        self._is_loaded = True
        scale = getattr(wrapper, "weight_scale", None)
        if scale is not None:
            wrapper.weight_is_fixed = not bool(namespace(scale).any(scale <= 0))

    # -- coming and going ----------------------------------------------------------------------------

    def compress(self, model: Any = None) -> Any:
        """As in :meth:`Compressor.compress`."""
        if self._is_outdated and not self.is_wrapped:
            self._is_outdated = self._is_loaded = False
            self._forget()
        compressed = super().compress(model)
        self._fix_by_weights_alone()
        return compressed

    def strip(self) -> Any:
        """As in :meth:`Compressor.strip`; parameters that calibration has changed are put back."""
        model = super().strip()
        self._undo()
        return model

    def _take_state(self) -> None:
        super()._take_state()
        self._is_outdated, self._is_loaded = False, True

    def _undo(self) -> None:
        """Undo what the last calibration did to the parameters."""
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
        """Forget all ranges and scales: they were for other parameters."""
        for wrapper in self.get_modules_wrapper():
            wrapper.weight_is_fixed = False
            for target in ACTIVATIONS:
                if target in wrapper.roles:
                    setattr(wrapper, f"{target}_is_known", False)

    def _keep(self, batches: Iterable[Any]) -> tuple[list[Any], Iterable[Any]]:
        """Return the first batches in a list, and all batches once more."""
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


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: received {value!r}, expected True or False.")
    return value


def _check_alpha(alpha: Any) -> float | None:
    if alpha is None:
        return None
    is_number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not is_number or not 0 <= alpha <= 1:
        raise ConfigError(f"smooth: received {alpha!r}, expected a number from 0 to 1, or None.")
    return float(alpha)


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
