"""Nested values as JSON from which they can be restored exactly, with tensors in a separate store."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lilliput.errors import StateError


class NotPlainError(StateError):
    """A value that is not a tensor, a number, a string, a list, a tuple or a dict; ``what`` names it."""

    def __init__(self, message: str, what: str = "") -> None:  # pickle passes only the message
        super().__init__(message)
        self.what = what


def pack(value: Any, path: str, store: dict[str, Any], is_tensor: Callable[[Any], bool]) -> Any:
    """Return a value as JSON; tensors go to ``store``, by their path.

    Examples
    --------
    >>> store = {}
    >>> pack({"lr": 0.1, 0: (1, None)}, "", store, lambda x: False)
    {'dict': [['lr', 0.1], [0, {'tuple': [1, None]}]]}
    """
    if is_tensor(value):
        store[path] = value
        return {"tensor": path}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [pack(x, f"{path}/{i}", store, is_tensor) for i, x in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        pairs = [[k, pack(x, f"{path}/{k}", store, is_tensor)] for k, x in value.items()]
        return {"dict": pairs}
    raise NotPlainError(
        f"{path}: a {type(value).__name__} cannot be written to a checkpoint; expected tensors, numbers, "
        "strings, lists, tuples and dicts.",
        f"a {type(value).__name__}",
    )


def unpack(value: Any, store: Mapping[str, Any], title: str = "the checkpoint is") -> Any:
    """Return the value that :func:`pack` described; ``title`` starts the message if it is invalid."""
    try:
        return _unpack(value, store)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise StateError(f"{title} damaged ({error!r}).") from error


def _unpack(value: Any, store: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_unpack(x, store) for x in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return store[content]
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(_unpack(x, store) for x in content)
    if kind != "dict":
        raise ValueError(kind)
    pairs = content.items() if isinstance(content, dict) else content
    return {key: _unpack(x, store) for key, x in pairs}
