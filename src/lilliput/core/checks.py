"""Check the arguments of constructors, so that all of them refuse in the same way what cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from lilliput.errors import ConfigError


def checked_number(
    name: str, value: Any, expected: str, fits: Callable[[float], bool] = math.isfinite
) -> float:
    """Return an argument as a float, or raise unless it is a finite number that fits.

    Examples
    --------
    >>> checked_number("scale", 1, "0 or more", lambda x: x >= 0)
    1.0
    >>> checked_number("scale", "1", "0 or more", lambda x: x >= 0)
    Traceback (most recent call last):
    lilliput.errors.ConfigError: scale: received '1', expected 0 or more.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if not math.isfinite(number) or not fits(number):
        raise ConfigError(f"{name}: received {value!r}, expected {expected}.")
    return number


def checked_flag(name: str, value: Any) -> bool:
    """Return an argument, or raise unless it is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: received {value!r}, expected True or False.")
    return value
