"""Modules whose names are loaded on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily_from(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module, given where each of its names is defined.

    Examples
    --------
    >>> load, names = lazily_from("lilliput.lazy", {"sqrt": "math"})
    >>> load("sqrt")(9.0), names()
    (3.0, ['sqrt'])
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return load, lambda: sorted(homes)
