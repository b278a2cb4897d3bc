"""Observations of a run: the work of each module, the number of examples and of threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass
class Work:
    """Observations of one module while the model ran."""

    path: str
    type: str
    macs: int = 0
    seconds: list[float] = field(default_factory=list)


def batch_of(arrays: Iterable[Any]) -> int:
    """Return the number of examples in inputs: the first axis of the first tensor with two or more.

    Examples
    --------
    >>> import numpy as np
    >>> batch_of([np.zeros((8, 3)), np.zeros(3)]), batch_of([np.zeros(3)])
    (8, 1)
    """
    shapes: Iterable[Sequence[int]] = (x.shape for x in arrays if hasattr(x, "shape"))
    return next((int(shape[0]) for shape in shapes if len(shape) > 1), 1)


def default_threads() -> int:
    """Return the number of threads torch uses or would use: ``OMP_NUM_THREADS``, or one per processor."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
