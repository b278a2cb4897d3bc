"""The table of all strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from lilliput.core.checks import checked_choice
from lilliput.extras import require

STRATEGIES = ("knapsack", "evolution", "netadapt", "annealing", "bayes")
_NEEDED = {"bayes": "optuna"}  # packages


def strategy_named(name: Any) -> Callable[[Any], Any]:
    """Return the function of a strategy."""
    checked_choice("strategy", name, STRATEGIES)
    if name in _NEEDED:
        require(_NEEDED[name], f"strategy {name!r} needs pip install 'lilliput[search]'")
    found: Callable[[Any], Any] = import_module(f"lilliput.search.strategies.{name}").search
    return found
