"""v3's config lists for quantizers: settings by target, and their defaults.

In v3 a tensor had one scale, symmetric int8 without the lowest integer, unless a rule said otherwise; and
several rules could each set other targets of one layer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lilliput.compat.nni.config.keys import NEW_SELECTORS
from lilliput.config.parse import parse_rules
from lilliput.config.select import select
from lilliput.config.spec import Rule
from lilliput.errors import ConfigError, Problem
from lilliput.frameworks import backend_of
from lilliput.printing import shown

log = logging.getLogger("lilliput")

_TARGETS = {
    "weight": "weight",
    **dict.fromkeys(("_input_", "_input_0"), "input"),
    **dict.fromkeys(("_output_", "_output_0"), "output"),
}
_KEYS = ("quant_dtype", "quant_scheme", "granularity", "apply_method")
_OWN = ("target_names", "target_settings", "fuse_names", *_KEYS)
_DTYPE = re.compile(r"(u?int)([0-9]{1,2})")
Settings = dict[str, dict[str, Any]]


def fused_names(config_list: Any) -> tuple[tuple[str, ...], ...]:
    """Return the tuples of layers that rules fuse."""
    rules = config_list if isinstance(config_list, (list, tuple)) else ()
    found = [x for rule in rules if isinstance(rule, Mapping) for x in rule.get("fuse_names") or ()]
    return tuple(tuple(names) for names in found)


def target_quant_rules(model: Any, config_list: Any, rule_type: type[Rule], title: str) -> Any:
    """Return v3's rules in the current keys; other rules are unchanged.

    Parameters
    ----------
    model : torch.nn.Module
        Determines which layers several rules select.
    config_list : list of dict
        As written by the user.
    rule_type : type of Rule
        The keys of the quantizer; settings without a key are its fixed behaviour.
    title : str
        Name of the quantizer, for messages.
    """
    if not isinstance(config_list, (list, tuple)) or not any(map(is_of_v3, config_list)):
        return config_list
    settings = [read_settings(i, rule, title) for i, rule in enumerate(config_list)]
    known = rule_type.model_fields
    merged = _merged(model, config_list, settings)
    rules = []
    for index, (rule, setting) in enumerate(zip(config_list, settings, strict=True)):
        if setting is None:
            rules.append(rule)
        elif index not in merged:
            rules.append(_selectors(rule) | _written(setting, known))
    for names, setting in merged.get(-1, ()):
        rules.append({"op_names": [names]} | _written(setting, known))
    return rules


def is_of_v3(rule: Any) -> bool:
    """Whether a rule is one of v3 for a quantizer, so that omitted settings mean v3's defaults."""
    if not isinstance(rule, Mapping) or rule.get("exclude"):
        return False
    dtype = rule.get("quant_dtype")
    is_joined = isinstance(dtype, str) and _DTYPE.fullmatch(dtype) is not None
    return is_joined or any(rule.get(key) is not None for key in _OWN[:3])


def _selectors(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {key: rule[key] for key in NEW_SELECTORS if key in rule}


def read_settings(index: int, rule: Any, title: str) -> Settings | None:
    """Return the settings of each target of a rule; under '' if it names no target."""
    if not is_of_v3(rule):
        return None

    def fail(key: str, text: str) -> ConfigError:
        return ConfigError([Problem(f"rule {index} → {key}", text)], title=title)

    unknown = [key for key in rule if key not in (*NEW_SELECTORS, *_OWN, "exclude")]
    if unknown:
        raise fail(unknown[0], "unknown key for quantization in the form of v3.")
    names, own = rule.get("target_names"), rule.get("target_settings") or {}
    names = list(own) if names is None else list(names)
    settings: Settings = {}
    for name in names or [""]:
        if name and name not in _TARGETS:
            hint = "; the bias is added in 32 bits" if name == "bias" else ""
            text = f"quantization acts on '_input_', 'weight' and '_output_', received {shown(name)}{hint}."
            raise fail("target_names", text)
        given = {key: rule[key] for key in _KEYS if rule.get(key) is not None} | dict(
            own.get(name) or own.get(f"{name}0") or {}
        )
        settings[_TARGETS.get(name, "")] = _translated(given, _TARGETS.get(name, ""), fail)
    return settings


def _translated(given: Mapping[str, Any], target: str, fail: Any) -> dict[str, Any]:
    """Return one target's settings in the current keys."""
    dtype = given.get("quant_dtype") or "int8"
    match = _DTYPE.fullmatch(dtype) if isinstance(dtype, str) else None
    if match is None:
        raise fail(
            "quant_dtype", f"received {shown(dtype)}, expected one such as 'int8' or 'uint4'."
        )
    if given.get("apply_method") not in (None, "clamp_round"):
        raise fail("apply_method", "quantizers clamp and round ('clamp_round'); remove it.")
    made: dict[str, Any] = {
        "quant_dtype": match[1],
        "quant_bits": int(match[2]),
        "quant_scheme": given.get("quant_scheme") or "symmetric",
        "narrow_range": match[1] == "int",
    }
    return made | _granularity(given.get("granularity"), target, fail)


def _granularity(value: Any, target: str, fail: Any) -> dict[str, Any]:
    if value in (None, "default"):
        return {"granularity": "per_tensor"}
    if target in ("input", "output"):
        text = f"activations have one scale here; omit it (received {shown(value)})."
        raise fail("granularity", text)
    if value in ("out_channel", "per_channel"):
        return {"granularity": "per_channel"}
    sizes = list(value) if isinstance(value, (list, tuple)) else []
    if sizes and sizes[0] == 1 and all(x == -1 for x in sizes[1:]) and len(sizes) > 1:
        return {"granularity": "per_channel"}
    if sizes and all(x == 1 for x in sizes[:-1]) and isinstance(sizes[-1], int) and sizes[-1] > 1:
        return {"granularity": "per_group", "group_size": sizes[-1]}
    expected = "'default', 'out_channel' or [1, n]: n inputs that share a scale"
    raise fail("granularity", f"received {shown(value)}, expected {expected}.")


def _written(settings: Settings, known: Iterable[str]) -> dict[str, Any]:
    """Return settings as the keys of one current rule."""
    if "" in settings:
        return {key: value for key, value in settings[""].items() if key in known}
    rule: dict[str, Any] = {"quant_types": list(settings)}
    for target, setting in settings.items():
        for key, value in setting.items():
            if key not in known or (key == "granularity" and target != "weight"):
                continue
            if key == "group_size":
                rule[key] = value
            else:
                rule.setdefault(key, {})[target] = value
    return rule


def _merged(model: Any, config_list: Any, settings: list[Settings | None]) -> dict[int, Any]:
    """Return the rules that share layers, under their numbers, and the settings of these layers under -1."""
    taken: dict[str, list[int]] = {}
    backend = backend_of(model)
    layers = backend.layers(model)
    for index, rule in enumerate(config_list):
        if not isinstance(rule, Mapping):
            continue
        parsed = parse_rules([_selectors(rule)], Rule).rules
        for layer in select(layers, parsed, backend.default_types).chosen:
            if rule.get("exclude"):
                taken.pop(layer.name, None)
            elif settings[index] is not None:
                taken.setdefault(layer.name, []).append(index)
    shared = {name: rules for name, rules in taken.items() if len(rules) > 1}
    if not shared:
        return {}
    involved = {index for rules in shared.values() for index in rules}
    made = []
    for name, rules in taken.items():
        if involved.isdisjoint(rules):
            continue
        together: Settings = {}
        for index in rules:
            _check_twice(name, together, settings[index] or {}, index)
            together |= settings[index] or {}
        made.append((name, together))
    return {**dict.fromkeys(involved, True), -1: made}


def _check_twice(name: str, before: Settings, now: Settings, index: int) -> None:
    for target in before.keys() & now.keys():
        if before[target] != now[target]:
            log.warning(
                "rule %d sets the %s of layer %r again; the last rule counts, where NNI v3 kept the first.",
                index,
                target or "tensors",
                name,
            )
