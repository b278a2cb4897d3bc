"""What each op does to labels: one small function per family, found by the op's name."""

from __future__ import annotations

import torch
from torch import fx

from lilliput.speedup.rules import (
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
from lilliput.speedup.rules.table import RULES
from lilliput.speedup.walk import Rule, op_name

__all__ = ["RULES", "find_rule"]

_FAMILIES = (
    *(attention, contract, convolve, create, normalize, pick),
    *(pointwise, recurrent, reduce, reshape, window),
)


def find_rule(node: fx.Node) -> Rule | None:
    """Return the rule of a node's op, None if it must be given up."""
    target = node.target
    rule = RULES.get(op_name(node))
    if rule is not None:
        return rule
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if torch.Tag.pointwise in target.tags:
        return pointwise.elementwise
    return movement.by_execution
