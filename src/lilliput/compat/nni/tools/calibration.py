"""Ranges and scales of a quantizer in the format of NNI's calibration files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lilliput.compat.nni.tools.filing import PathLike, read_tensors
from lilliput.errors import ConfigError, StageError, StateError
from lilliput.ops.qparams import QParams, spread
from lilliput.quantization.bnn import BNNQuantizer
from lilliput.quantization.grids import bits_of
from lilliput.quantization.lsq import LSQPlusQuantizer, LSQQuantizer
from lilliput.quantization.ranges import RangeQuantizer
from lilliput.torch import QuantType

log = logging.getLogger("lilliput")

_ENDS = (("min", "low"), ("max", "high"))
# Names of the same in 2.0 to 2.3.
_LATER_WORDS = {
    "weight_bit": "weight_bits",
    "activation_bit": "output_bits",
    "tracked_min_activation": "tracked_min_output",
    "tracked_max_activation": "tracked_max_output",
}


def calibration_config(quantizer: Any) -> dict[str, dict[str, Any]]:
    """Return bits, scale, zero point and tracked range of each layer's tensors."""
    found: dict[str, dict[str, Any]] = {}
    for wrapper in quantizer.get_modules_wrapper():
        entry: dict[str, Any] = {}
        for role in wrapper.roles:
            qparams = quantizer.qparams(wrapper, QuantType(role))
            if qparams is not None and qparams.grid.is_dynamic:
                qparams = None  # a scale per call cannot be written
            is_binary = isinstance(quantizer, BNNQuantizer)  # its -1 and 1 are stored in 8 bits
            entry[f"{role}_bits"] = 1 if is_binary else bits_of(wrapper.config, role)
            if qparams is not None:
                entry |= _grid_entry(wrapper, role, qparams)
            if isinstance(quantizer, RangeQuantizer) and role != "weight" and qparams is not None:
                ends = _tracked(quantizer, wrapper, role, qparams)
                entry |= {f"tracked_{end}_{role}": value for end, value in ends.items()}
        found[wrapper.name] = entry
    return found


def _grid_entry(wrapper: Any, role: str, qparams: QParams) -> dict[str, Any]:
    """Return scale and zero point in NNI's shapes, which broadcast with the tensor."""
    made = {}
    for name, value in (("scale", qparams.scale), ("zero_point", qparams.zero_point)):
        wide = value.detach().cpu().clone()
        if role == "weight" and qparams.grid.axis is not None:
            wide = spread(wide, wrapper.layer_info.shape, qparams.grid)
        made[f"{role}_{name}"] = wide.reshape(1) if wide.dim() == 0 else wide
    return made


def _tracked(quantizer: Any, wrapper: Any, role: str, qparams: QParams) -> dict[str, float]:
    """Return the observed range, or for learned scales the range that they cover."""
    if quantizer.keeps_ranges:
        other, target = quantizer._who_quantizes(wrapper, role)
        return {end: float(getattr(other, f"{target}_{own}")) for end, own in _ENDS}
    ends = (qparams.grid.low, qparams.grid.high)
    reals = [float((x - qparams.zero_point) * qparams.scale) for x in ends]
    return dict(zip(("min", "max"), reals, strict=True))


def load_calibration(quantizer: Any, given: PathLike | Mapping[str, Any]) -> None:
    """Quantize from now on with the ranges of a calibration file, of any version from 2.0 on.

    A layer that is not in the file is reported; one with other bits is an error, and nothing changes.
    """
    if isinstance(quantizer, LSQPlusQuantizer):
        raise StageError(
            "LSQPlusQuantizer learns offsets, which a calibration file cannot store; save them with "
            "quantizer.state().save(folder) and load_state(folder)."
        )
    entries = _read(quantizer, given)
    if not quantizer.is_wrapped:
        quantizer._prepare()  # as in load_state(), so that compress() discards nothing
    for wrapper, entry in entries:
        for role in wrapper.roles if isinstance(quantizer, RangeQuantizer) else ():
            if role == "weight":
                _take_weight(quantizer, wrapper, entry)
            else:
                _take_range(quantizer, wrapper, role, entry)
    if isinstance(quantizer, RangeQuantizer):
        starts = [w.config.get("quant_start_step", quantizer.quant_start_step) for w, _ in entries]
        quantizer.current_step = max([quantizer.current_step, *starts])
        quantizer._update_delays()


def _read(quantizer: Any, given: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Return each layer with its entry, after validating all of them."""
    config = read_tensors(given, "calibration config")
    entries = []
    for wrapper in quantizer.get_modules_wrapper():
        held = config.get(wrapper.name)
        if held is None:
            log.warning(
                "load_calibration_config: the file has no entry for layer %r; it keeps its own ranges.",
                wrapper.name,
            )
            continue
        if not isinstance(held, Mapping):
            raise StateError(f"calibration config: {wrapper.name!r} holds {held!r}, not a dict.")
        entry = in_todays_words(held)
        for role in wrapper.roles:
            bits, ours = entry.get(f"{role}_bits"), bits_of(wrapper.config, role)
            if bits is not None and int(bits) != ours:
                raise ConfigError(
                    f"layer {wrapper.name!r}: the calibration config has {int(bits)} bits for its "
                    f"{role}, the rule has {ours}; give 'quant_bits' as they were."
                )
        entries.append((wrapper, entry))
    return entries


def in_todays_words(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer's entry with the keys of 2.4 and later.

    Examples
    --------
    >>> in_todays_words({"weight_bit": 8, "tracked_min_activation": 0.0})
    {'weight_bits': 8, 'tracked_min_output': 0.0}
    """
    return {_LATER_WORDS.get(key, key): value for key, value in entry.items()}


def _take_range(quantizer: Any, wrapper: Any, role: str, entry: Mapping[str, Any]) -> None:
    owner, target = quantizer._who_quantizes(wrapper, role)
    low, high = (entry.get(f"tracked_{end}_{role}") for end, _ in _ENDS)
    if low is None or high is None:
        log.warning("load_calibration_config: no range for the %s of layer %r.", role, wrapper.name)
        return
    quantizer.set_range(owner, target, float(low), float(high))
    scale = entry.get(f"{role}_scale")
    if isinstance(quantizer, LSQQuantizer) and scale is not None:
        zero = entry[f"{role}_zero_point"]
        _assign(getattr(owner, f"{target}_scale"), scale)
        _assign(getattr(owner, f"{target}_zero_point"), zero)


def _take_weight(quantizer: Any, wrapper: Any, entry: Mapping[str, Any]) -> None:
    """Load the scale of a weight: a learned one permanently, another one until training continues.

    NNI wrote the scale of its last forward pass in training, which differs slightly after the last step.
    """
    scale, zero = entry.get("weight_scale"), entry.get("weight_zero_point")
    if scale is None or zero is None:
        return
    if isinstance(quantizer, LSQQuantizer):
        _assign(wrapper.weight_scale, scale)
        wrapper.set_attribute("weight_zero_point", _like(wrapper.weight_zero_point, zero))
        return
    ours = quantizer._weight_qparams(wrapper)
    is_like_ours = _is_like(ours, scale, zero)
    if not is_like_ours or quantizer._fold_factor(wrapper) is not None:
        if not is_like_ours:
            log.warning(
                "load_calibration_config: the weight of layer %r has another scale than in the file; "
                "load the weights that were exported with it, and give 'quant_scheme' as it was.",
                wrapper.name,
            )
        return
    held = _like(ours.scale, scale), _like(ours.zero_point, zero)
    if not all(torch.equal(x, y) for x, y in zip(held, (ours.scale, ours.zero_point), strict=True)):
        wrapper.set_attribute("weight_scale", held[0])
        wrapper.set_attribute("weight_zero_point", held[1])
        wrapper.weight_is_fixed = True
        quantizer.held_scales = (*getattr(quantizer, "held_scales", ()), wrapper)


def _is_like(ours: QParams, scale: Tensor, zero: Tensor) -> bool:
    """Whether the scale of a file has the same scheme, and is for about the same weight."""
    if scale.numel() != ours.scale.numel():
        return False
    zeros = zero.flatten().to(ours.zero_point)
    if ours.grid.is_symmetric and not bool((zeros == ours.zero_point.flatten()).all()):
        return False
    ratio = scale.flatten().to(ours.scale) / ours.scale.flatten()
    return not bool(((ratio < 0.5) | (ratio > 2)).any())


def release_scales(wrappers: Any) -> None:
    """Let scales follow the weights again."""
    for wrapper in wrappers:
        wrapper.weight_is_fixed = False
        for name in ("weight_scale", "weight_zero_point"):
            delattr(wrapper, name)


def _assign(held: Any, value: Any) -> None:
    with torch.no_grad():
        held.copy_(_like(held, value))


def _like(held: Any, value: Any) -> Any:
    tensor = torch.as_tensor(value)
    if tensor.numel() != held.numel():
        raise StateError(
            f"calibration config: received {tensor.numel()} scales, expected {held.numel()}; give "
            "'quant_scheme' as it was (per tensor or per channel)."
        )
    return tensor.reshape(held.shape).to(held)
