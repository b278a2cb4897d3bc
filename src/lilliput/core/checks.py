"""Check constructor arguments, so that all algorithms reject invalid ones in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

from lilliput.errors import ConfigError, nearest


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


def checked_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return an argument, or raise unless it is one of some words.

    Examples
    --------
    >>> checked_choice("mode", "hrd", ("hard", "soft"))
    Traceback (most recent call last):
    lilliput.errors.ConfigError: mode: received 'hrd', expected 'hard' or 'soft'. Did you mean 'hard'?
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    words = [repr(x) for x in known]
    expected = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    hint = nearest(value, known) if isinstance(value, str) else ""
    raise ConfigError(f"{name}: received {value!r}, expected {expected}.{hint}")


def checked_flag(name: str, value: Any) -> bool:
    """Return an argument, or raise unless it is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: received {value!r}, expected True or False.")
    return value
