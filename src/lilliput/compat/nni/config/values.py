"""Compare, convert and copy values of a user's rules; none of these functions raises.

A value may be an array or an object of the user's class, whose own code can fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def converted(kind: type[Any], value: Any) -> Any:
    """Return ``kind(value)``, or None if the value's own code fails."""
    try:
        return kind(value)
    except Exception:  # runs the user's code; translate() must not raise
        return None


def is_same(left: Any, right: Any) -> bool:
    """Compare any two values; lists of strings compare without order."""
    lists = isinstance(left, list) and isinstance(right, list)
    if lists and all(isinstance(item, str) for item in [*left, *right]):
        return set(left) == set(right)
    try:
        return bool(left == right)
    except Exception:  # arrays, deep nesting or the user's own code
        return False


def merge(left: Any, right: Any) -> tuple[bool, Any]:
    """Return whether two values of one setting agree, and the combined value."""
    if is_same(as_list(left), as_list(right)):
        return True, left
    if type(left) is dict and type(right) is dict:
        agrees = all(is_same(left[kind], right[kind]) for kind in left.keys() & right.keys())
        return agrees, {**right, **left}
    if type(left) is dict:
        left, right = right, left
    if type(right) is dict:
        # A value for all quant types and one by type are fine if they are equal.
        return all(is_same(left, value) for value in right.values()), left
    return False, left


def strings_of(value: Any) -> list[str] | None:
    """Return a string or a list of strings as a new list, or None for anything else."""
    items = as_list(value)
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return list(items)
    return None


def as_list(value: Any) -> Any:
    """Return a bare string or a tuple as a list, anything else unchanged."""
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, tuple) else value


def keys_of(value: Any) -> list[Any]:
    """Return the keys of a mapping, none for anything else."""
    return list(converted(dict, value) or {}) if isinstance(value, Mapping) else []


def unshared(value: Any) -> Any:
    """Copy a plain container, so that rules share none with each other or the user.

    A dict subclass becomes a plain dict, because its methods are unknown.
    """
    if isinstance(value, dict):
        copied = converted(dict, value)
        return value if copied is None else copied
    return value.copy() if type(value) is list else value
