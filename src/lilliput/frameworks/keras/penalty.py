"""A penalty on weights: a regularizer of the variable, a part of the loss as Keras computes it.

``fit`` and ``train_on_batch`` add it, with the scaling of losses and the sharing among devices that Keras
has for its own regularizers; a loop of the user's own adds ``sum(model.losses)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops


class Penalty:
    """``scale * sum |w|``, on top of the regularizer that a variable has already."""

    def __init__(self, scale: float, plain: Any) -> None:
        self.scale, self.plain = scale, plain

    def __call__(self, weight: Any) -> Any:
        """Return the penalty of a weight."""
        own = self.scale * ops.sum(ops.abs(weight))
        return own if self.plain is None else own + self.plain(weight)


def set_penalty(variables: Sequence[Any], scale: float) -> bool:
    """Penalize variables from now on, 0 to end it; return whether anything has changed."""
    changed = False
    for variable in variables:
        held = variable.regularizer
        plain = held.plain if isinstance(held, Penalty) else held
        before = held.scale if isinstance(held, Penalty) else 0.0
        if scale != before:
            variable.regularizer = Penalty(scale, plain) if scale else plain
            changed = True
    return changed
