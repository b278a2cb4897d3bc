"""What a quantizer knows about ranges and scales, in the words of NNI's calibration files."""

from __future__ import annotations

from typing import Any

from lilliput.torch import QuantType


def calibration_config(quantizer: Any) -> dict[str, dict[str, Any]]:
    """Return bits, scale, zero point and tracked range of each layer's tensors."""
    found: dict[str, dict[str, Any]] = {}
    for wrapper in quantizer.get_modules_wrapper():
        entry: dict[str, Any] = {}
        for role in wrapper.roles:
            qparams = quantizer.qparams(wrapper, QuantType(role))
            if qparams is None:
                continue
            entry[f"{role}_bits"] = qparams.grid.bits
            entry[f"{role}_scale"] = qparams.scale.detach().clone()
            entry[f"{role}_zero_point"] = qparams.zero_point.detach().clone()
            for key, end in (("min", "low"), ("max", "high")):
                bound = getattr(wrapper, f"{role}_{end}", None)
                if bound is not None:
                    entry[f"tracked_{key}_{role}"] = float(bound)
        found[wrapper.name] = entry
    return found
