"""The effect of each op on labels: one small function per family, found by the op's name."""

from __future__ import annotations

from lilliput.graph.ir import Op
from lilliput.graph.rules import (
    attention,
    contract,
    convolve,
    create,
    movement,
    normalize,
    pick,
    pointwise,
    recurrent,
    reduce,
    reshape,
    window,
)
from lilliput.graph.rules.table import RULES
from lilliput.graph.walk import Rule

__all__ = ["RULES", "find_rule"]

_FAMILIES = (
    *(attention, contract, convolve, create, normalize, pick),
    *(pointwise, recurrent, reduce, reshape, window),
)


def find_rule(op: Op) -> Rule | None:
    """Return the rule of an op, or None to give up."""
    rule = RULES.get(op.name)
    if rule is not None:
        return rule
    if op.is_pointwise:
        return pointwise.elementwise
    return None if op.run is None else movement.by_execution
