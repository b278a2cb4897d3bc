"""``nni.trace``: the class itself, whose objects remember how they were made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def trace(cls_or_func: T, **_: Any) -> T:
    """Return what makes the same objects, with ``trace_symbol``, ``trace_args`` and ``trace_kwargs``.

    NNI needed them to make an optimizer anew for a wrapped model; here parameters stay the same, so an
    optimizer is used as it is.

    Examples
    --------
    >>> import torch
    >>> optimizer = trace(torch.optim.SGD)(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    >>> type(optimizer) is torch.optim.SGD, optimizer.trace_kwargs["lr"]
    (True, 0.1)
    """
    assigned = (*functools.WRAPPER_ASSIGNMENTS,)

    @functools.wraps(cls_or_func, assigned=assigned, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        made = cls_or_func(*args, **kwargs)
        for name, value in (("symbol", cls_or_func), ("args", args), ("kwargs", kwargs)):
            setattr(made, f"trace_{name}", value)
        return made

    return make  # type: ignore[return-value]
