"""Call users' functions with as many arguments as they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def call(function: Callable[..., Any], *args: Any, **extras: Any) -> Any:
    """Call a user's function with those extras that it has parameters for.

    Examples
    --------
    >>> call(lambda x, epoch: (x, epoch), 1, epoch=2, epochs=3)
    (1, 2)
    """
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function(*args)
    takes_all = any(x.kind is x.VAR_KEYWORD for x in known.values())
    positional = list(known)[: len(args)]
    wanted = {k: v for k, v in extras.items() if takes_all or (k in known and k not in positional)}
    return function(*args, **wanted)
