"""Default quantization settings of NNI 1.x and 2.x: one scale per tensor, with a zero point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.config.layer import QuantType
from lilliput.errors import ConfigError

_AFFINE = {"quant_scheme": "per_tensor_affine", "quant_dtype": "uint"}
_SYMMETRIC = {"quant_scheme": "per_tensor_symmetric", "quant_dtype": "int"}
_SCHEMES = [f"per_{x}_{y}" for x in ("tensor", "channel") for y in ("affine", "symmetric")]
_DTYPES = ["int", "uint"]

# By current class; others have no scheme.
_DEFAULTS = {
    "QATQuantizer": dict.fromkeys(("weight", "input", "output"), _AFFINE),
    "PTQQuantizer": {"weight": _SYMMETRIC, "input": _AFFINE, "output": _AFFINE},
    "LSQQuantizer": {"weight": _SYMMETRIC},
}
_chosen: dict[str, dict[str, str]] = {}  # set by a program


def set_quant_scheme_dtype(
    quant_type: Any, new_scheme: str | None = None, new_dtype: str | None = None
) -> None:
    """Set the default quantization of a kind of tensor for quantizers created from now on.

    Parameters
    ----------
    quant_type : str or QuantType
        ``'weight'``, ``'input'`` or ``'output'``.
    new_scheme : str, optional
        ``'per_tensor_affine'``, ``'per_tensor_symmetric'``, ``'per_channel_affine'`` or
        ``'per_channel_symmetric'``.
    new_dtype : str, optional
        ``'int'`` or ``'uint'``.
    """
    known = [kind.value for kind in QuantType]
    target = str(getattr(quant_type, "value", quant_type))
    for what, value, allowed in (
        ("quant_type", target, known),
        ("new_scheme", new_scheme, _SCHEMES),
        ("new_dtype", new_dtype, _DTYPES),
    ):
        if value is not None and value not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise ConfigError(f"{what}: received {value!r}, expected one of {listed}.")
    given = {"quant_scheme": new_scheme, "quant_dtype": new_dtype}
    _chosen.setdefault(target, {}).update({k: v for k, v in given.items() if v is not None})


def forget_settings() -> None:
    """Restore NNI's initial defaults."""
    _chosen.clear()


def with_settings(name: str, config_list: Any) -> Any:
    """Return rules with NNI's defaults filled in.

    Examples
    --------
    >>> with_settings("LSQQuantizer", [{"quant_types": ["weight"]}])[0]["granularity"]
    {'weight': 'per_tensor'}
    """
    defaults = _DEFAULTS.get(name)
    if defaults is None or not isinstance(config_list, (list, tuple)):
        return config_list
    return [_filled(rule, defaults) for rule in config_list]


def _filled(rule: Any, defaults: Mapping[str, Mapping[str, str]]) -> Any:
    if not isinstance(rule, Mapping) or rule.get("exclude"):
        return rule
    made = dict(rule)
    for target in rule.get("quant_types") or ():
        setting = {**defaults.get(str(target), {}), **_chosen.get(str(target), {})}
        says_scheme = _says(rule, "quant_scheme", target) or _says(rule, "granularity", target)
        if "quant_scheme" in setting and not says_scheme:
            _, granularity, scheme = setting["quant_scheme"].split("_")
            _set(made, "quant_scheme", target, scheme)
            if target == "weight":
                _set(made, "granularity", target, f"per_{granularity}")
        if "quant_dtype" in setting and not _says(rule, "quant_dtype", target):
            _set(made, "quant_dtype", target, setting["quant_dtype"])
    return made


def _says(rule: Mapping[str, Any], key: str, target: str) -> bool:
    value = rule.get(key)
    return value is not None and (not isinstance(value, Mapping) or target in value)


def _set(rule: dict[str, Any], key: str, target: str, value: str) -> None:
    rule[key] = {**(rule.get(key) or {}), target: value}
