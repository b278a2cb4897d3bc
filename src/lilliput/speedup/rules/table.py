"""The table of rules."""

from __future__ import annotations

from collections.abc import Callable

from lilliput.speedup.walk import Rule

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of these ops."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter
