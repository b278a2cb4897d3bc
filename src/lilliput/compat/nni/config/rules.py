"""Config lists of NNI's iterative pruners, rewritten as current rules before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.errors import ConfigError
from lilliput.printing import shown

_OWN = ("sparsity", "sparsity_per_layer", "sparse_ratio")


def in_total(config_list: Any) -> Any:
    """Make the sparsity of each rule apply to all its layers together.

    Examples
    --------
    >>> in_total([{"sparsity": 0.5, "op_types": ["BatchNorm2d"]}])
    [{'op_types': ['BatchNorm2d'], 'total_sparsity': 0.5}]
    """
    return _replaced(config_list, lambda sparsity: {"total_sparsity": sparsity})


def on_schedule(config_list: Any, end_epoch: int, frequency: int = 1) -> Any:
    """Make each rule reach its sparsity from zero, on a schedule.

    Examples
    --------
    >>> on_schedule([{"sparsity": 0.5}], 4)
    [{'initial_sparsity': 0.0, 'start_epoch': 0, 'end_epoch': 4, 'frequency': 1, 'final_sparsity': 0.5}]
    """
    span = {
        "initial_sparsity": 0.0,
        "start_epoch": 0,
        "end_epoch": end_epoch,
        "frequency": frequency,
    }
    rules = _replaced(config_list, lambda sparsity: {**span, "final_sparsity": sparsity})
    return [{**span, **rule} if _is_total(rule) else rule for rule in rules]


def in_part(config_list: Any, part: float) -> Any:
    """Raise the kept share of each rule to a power: applied twice with 1 / 2, it removes the full sparsity.

    Examples
    --------
    >>> in_part([{"total_sparsity": 0.75}], 1 / 2)
    [{'total_sparsity': 0.5}]
    """
    if not isinstance(config_list, (list, tuple)):
        raise ConfigError(f"config_list: received {shown(config_list)}, expected a list of rules.")
    keys = (*_OWN, "total_sparsity")
    return [
        {k: 1 - (1 - v) ** part if k in keys else v for k, v in rule.items()}
        if isinstance(rule, Mapping)
        else rule
        for rule in config_list
    ]


def has_sparsity(config_list: Any) -> bool:
    """Whether any rule has a sparsity that is not on a schedule yet."""
    return any(
        _is_total(rule) or (isinstance(rule, Mapping) and any(key in rule for key in _OWN))
        for rule in config_list or ()
    )


def _is_total(rule: Any) -> bool:
    """Whether a rule has a total sparsity without a schedule."""
    is_total = isinstance(rule, Mapping) and "total_sparsity" in rule
    return is_total and "end_epoch" not in rule


def _replaced(config_list: Any, settings: Any) -> Any:
    if not isinstance(config_list, (list, tuple)):
        return config_list
    rules = []
    for rule in config_list:
        key = next((k for k in _OWN if isinstance(rule, Mapping) and k in rule), None)
        if key is None:
            rules.append(rule)
        else:
            rules.append({k: v for k, v in rule.items() if k != key} | settings(rule[key]))
    return rules
