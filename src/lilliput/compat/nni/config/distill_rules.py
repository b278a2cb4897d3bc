"""v3's config lists for distillers: ``lambda``, ``link`` and ``apply_method`` in the current keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lilliput.compat.nni.config.keys import NEW_SELECTORS
from lilliput.errors import ConfigError, Problem
from lilliput.printing import shown

_OWN = ("lambda", "link", "apply_method")
_TARGET = re.compile(r"_output_([0-9]?)")
# v3's KL divergence had this temperature, and classes along the last axis.
_METHODS: dict[Any, dict[str, Any]] = {
    "mse": {"loss": "mse"},
    "kl": {"loss": "kl", "temperature": 2.0, "axis": -1},
}


def distill_rules(config_list: Any, title: str) -> Any:
    """Return v3's rules in the current keys; anything but a list of rules is returned unchanged."""
    if not isinstance(config_list, (list, tuple)):
        return config_list
    return [_translated(i, rule, title) for i, rule in enumerate(config_list)]


def _translated(index: int, rule: Any, title: str) -> Any:
    if not isinstance(rule, Mapping) or rule.get("exclude"):
        return rule

    def fail(key: str, text: str) -> ConfigError:
        return ConfigError([Problem(f"rule {index} → {key}", text)], title=title)

    known = (*NEW_SELECTORS, *_OWN, "target_names", "target_settings", "exclude")
    unknown = [key for key in rule if key not in known]
    if unknown:
        raise fail(unknown[0], "unknown key for distillation in the form of v3.")
    settings = rule.get("target_settings") or {}
    names = list(rule.get("target_names") or settings or ["_output_0"])
    match = _TARGET.fullmatch(names[0]) if len(names) == 1 else None
    if match is None:
        text = f"received {shown(names)}, expected one output of a layer, such as ['_output_0']."
        raise fail("target_names", text)
    given = {key: rule[key] for key in _OWN if key in rule} | dict(settings.get(names[0]) or {})
    method = given.get("apply_method") or "mse"
    if method not in _METHODS:
        raise fail("apply_method", f"received {shown(method)}, expected 'mse' or 'kl'.")
    made = {key: rule[key] for key in NEW_SELECTORS if key in rule} | _METHODS[method]
    link, weight = given.get("link"), given.get("lambda")
    made |= {} if link in (None, "auto") else {"link": link}
    made |= {} if weight is None else {"weight": float(weight)}
    return made | {"item": int(match[1] or 0)}
