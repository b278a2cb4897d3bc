"""``nni.trace``: the class itself, whose objects record how they were created."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def trace(cls_or_func: T, **_: Any) -> T:
    """Return a callable for the same objects with ``trace_symbol``, ``trace_args`` and ``trace_kwargs``.

    NNI needed them to recreate an optimizer for a wrapped model; here parameters stay the same, so an
    optimizer is used unchanged. A class may be decorated as well; it stays a class.

    Examples
    --------
    >>> import torch
    >>> optimizer = trace(torch.optim.SGD)(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    >>> type(optimizer) is torch.optim.SGD, optimizer.trace_kwargs["lr"]
    (True, 0.1)
    """
    if isinstance(cls_or_func, type) and _is_being_defined(cls_or_func):
        return _noting(cls_or_func)  # type: ignore[no-any-return]
    assigned = (*functools.WRAPPER_ASSIGNMENTS,)

    @functools.wraps(cls_or_func, assigned=assigned, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        made = cls_or_func(*args, **kwargs)
        _note(made, cls_or_func, args, kwargs)
        return made

    return make  # type: ignore[return-value]


def _is_being_defined(cls: type) -> bool:
    """Whether a class has no name in its module yet, as while it is decorated."""
    module = sys.modules.get(cls.__module__)
    return getattr(module, cls.__name__, None) is not cls


def _noting(cls: Any) -> Any:
    """Make the constructor of a user's class record its arguments."""
    constructor = cls.__init__

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        constructor(self, *args, **kwargs)
        if type(self) is cls:
            _note(self, cls, args, kwargs)

    cls.__init__ = construct
    return cls


def _note(made: Any, symbol: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for name, value in (("symbol", symbol), ("args", args), ("kwargs", kwargs)):
        setattr(made, f"trace_{name}", value)
