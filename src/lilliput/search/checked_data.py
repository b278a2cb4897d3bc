"""Validate the batches of a search: there are some, they have examples, and the model accepts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lilliput.errors import ConfigError
from lilliput.printing import shown
from lilliput.search.space import Space


def checked_batches(space: Space, data: Any) -> list[Any]:
    """Return all batches, or raise with the one that the model does not accept.

    Examples
    --------
    >>> import torch
    >>> rules = [{"op_types": ["Linear"], "quant_bits": {"choose": [4, 8]}}]
    >>> space = Space(torch.nn.Linear(4, 2), rules, torch.zeros(2, 4))
    >>> checked_batches(space, [torch.zeros(4)])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    lilliput.errors.ConfigError: data: batch 0 (4 float32) has 1 axes, expected inputs like ...
    """
    batches = list(require_batches(data))
    if not batches:
        raise ConfigError("data: received no batches, expected a few.")
    seen = set()
    for number, batch in enumerate(batches):
        listed = _described(batch)
        if listed not in seen:  # one call for all batches of the same form
            _check(space, batch, f"batch {number} ({listed})")
        seen.add(listed)
    return batches


def require_batches(data: Any) -> Iterable[Any]:
    """Return data that can be iterated over, or raise."""
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise ConfigError(
            f"data: received {shown(data)}, expected batches, such as a list of them."
        )
    return data


def _check(space: Space, batch: Any, what: str) -> None:
    example = space.example_inputs
    expected = f"expected inputs like example_inputs ({_described(example)})"
    given, wanted = (getattr(_first(x), "shape", ()) for x in (batch, example))
    if 0 in given:
        raise ConfigError(f"data: {what} is empty, {expected}.")
    if given and len(given) != len(wanted):
        raise ConfigError(f"data: {what} has {len(given)} axes, {expected}.")
    try:
        space.backend.run(space.model, [batch], space.backend.feeder(example))
    except Exception as error:  # any error of the model's layers
        raise ConfigError(
            f"data: the model cannot be called with {what}, {expected}. {type(error).__name__}: {error}"
        ) from error


def _first(value: Any) -> Any:
    """Return the first tensor of a batch, or of the dict with its names, in any order."""
    return _first(value[0]) if isinstance(value, (tuple, list)) and value else value


def _described(value: Any) -> str:
    """Return the shapes and types of a batch."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_described(part)}" for key, part in value.items())
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_described, value))
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return shown(value)
    kind = str(value.dtype).rpartition(".")[2]
    return f"{'×'.join(map(str, value.shape)) or 'one'} {kind}"
