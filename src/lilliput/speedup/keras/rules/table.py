"""The table of rules."""

from __future__ import annotations

from collections.abc import Callable

from lilliput.speedup.keras.walk import Rule

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of layers, or of operations named ``ops.…``."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register
