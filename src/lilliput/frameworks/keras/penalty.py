"""A penalty on weights as a regularizer of the variable, which Keras adds to the loss.

``fit`` and ``train_on_batch`` add it, with the same loss scaling and distribution as Keras's own
regularizers; a custom training loop adds ``sum(model.losses)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops


class Penalty:
    """``scale * sum |w|``, added to the regularizer of a variable."""

    def __init__(self, scale: float, plain: Any) -> None:
        self.scale, self.plain = scale, plain

    def __call__(self, weight: Any) -> Any:
        """Return the penalty of a weight."""
        own = self.scale * ops.sum(ops.abs(weight))
        return own if self.plain is None else own + self.plain(weight)


def set_penalty(variables: Sequence[Any], scale: float) -> bool:
    """Penalize variables from now on, 0 to stop; return whether anything has changed."""
    changed = False
    for variable in variables:
        held = variable.regularizer
        plain = held.plain if isinstance(held, Penalty) else held
        before = held.scale if isinstance(held, Penalty) else 0.0
        if scale != before:
            variable.regularizer = Penalty(scale, plain) if scale else plain
            changed = True
    return changed
