"""Results of v3's quantizers: ranges and scales by layer and target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.compat.nni.tools.calibration import load_calibration
from lilliput.torch import QuantType

_TARGETS = {"input": "_input_0", "weight": "weight", "output": "_output_0"}


def calibration_by_target(quantizer: Any) -> dict[str, dict[str, Any]]:
    """Return v3's result: scale, zero point, dtype and range of each quantized tensor.

    The form is ``{layer: {'_input_0' | 'weight' | '_output_0': {'scale': ..., 'zero_point': ...}}}``.
    """
    found: dict[str, dict[str, Any]] = {}
    for wrapper in quantizer.get_modules_wrapper():
        entry = {_TARGETS[role]: _described(quantizer, wrapper, role) for role in wrapper.roles}
        found[wrapper.name] = {target: known for target, known in entry.items() if known}
    return found


def _described(quantizer: Any, wrapper: Any, role: str) -> dict[str, Any]:
    qparams = quantizer.qparams(wrapper, QuantType(role))
    if qparams is None or qparams.grid.is_dynamic:
        return {}
    grid, scale, zero = (
        qparams.grid,
        qparams.scale.detach().cpu(),
        qparams.zero_point.detach().cpu(),
    )
    low, high = (getattr(wrapper, f"{role}_{end}", None) for end in ("low", "high"))
    return {
        "scale": scale.clone(),
        "zero_point": zero.clone(),
        "quant_dtype": grid.dtype,
        "quant_scheme": "symmetric" if grid.is_symmetric else "affine",
        "quant_bits": grid.bits,
        "tracked_min": scale * (grid.low - zero) if low is None else low.detach().cpu().clone(),
        "tracked_max": scale * (grid.high - zero) if high is None else high.detach().cpu().clone(),
    }


def load_by_target(quantizer: Any, config: Mapping[str, Mapping[str, Any]]) -> None:
    """Quantize from now on with the ranges from :func:`calibration_by_target`."""
    roles = {target: role for role, target in _TARGETS.items()}
    words: dict[str, dict[str, Any]] = {}
    for name, entry in config.items():
        words[name] = {}
        for target, known in entry.items():
            role = roles.get(target, target)
            words[name][f"{role}_bits"] = known["quant_bits"]
            for key in ("scale", "zero_point"):
                words[name][f"{role}_{key}"] = known[key]
            for end in ("min", "max"):
                words[name][f"tracked_{end}_{role}"] = known[f"tracked_{end}"]
    load_calibration(quantizer, words)
