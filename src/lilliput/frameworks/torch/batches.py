"""Call a model with a batch of a data loader: decide which parts are arguments, and which are targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from lilliput.errors import ConfigError
from lilliput.frameworks.torch.discover import unwrapped

_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def call(model: nn.Module, batch: Any, example_inputs: Any = None) -> Any:
    """Call a model with a batch.

    A dict contains named arguments; anything but a tuple or list is the only argument. For a tuple or list
    (data loaders turn one into the other):

    - as many parts as ``example_inputs`` has arguments, or one more (the targets): those arguments;
    - without a tuple of example inputs, ``forward`` decides: if it requires several arguments, the parts
      are these, again possibly followed by targets; otherwise the first part is the only argument;
    - ``((a, b), targets)``: the parts of the first part.

    Examples
    --------
    >>> import torch
    >>> float(call(torch.nn.Identity(), (torch.ones(()), "the target")))
    1.0
    >>> call(torch.nn.Bilinear(2, 3, 4), (torch.ones(1, 2), torch.ones(1, 3))).shape
    torch.Size([1, 4])
    """
    args, kwargs = arguments_of(model, batch, example_inputs)
    return model(*args, **kwargs)


def arguments_of(
    model: nn.Module, batch: Any, example_inputs: Any = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and named arguments with which :func:`call` calls a model."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if not isinstance(batch, (tuple, list)):
        return (batch,), {}
    return tuple(_arguments(model, batch, example_inputs)), {}


def feeder(example_inputs: Any) -> Callable[[nn.Module, Any], Any]:
    """Return :func:`call` for a model whose example inputs are known."""
    return lambda model, batch: call(model, batch, example_inputs)


def _arguments(model: nn.Module, batch: Sequence[Any], example_inputs: Any) -> Sequence[Any]:
    count = _count(example_inputs)
    least, most = (count, count) if count else _demanded(model)
    if least < 2:
        if not batch:
            raise ConfigError(
                f"received an empty batch, expected the arguments of {_title(model)}."
            )
        return batch[:1]
    first = batch[0] if batch else None
    if isinstance(first, (tuple, list)) and len(first) == least:
        return first
    if len(batch) == least or (len(batch) == least + 1 and most == least):
        return batch[:least]
    raise ConfigError(
        f"a batch has {len(batch)} parts, and {_title(model)}; which of them are arguments and which are "
        "targets is ambiguous. Specify how to call it: forward=lambda model, batch: "
        f"model({', '.join(f'batch[{i}]' for i in range(least))})."
    )


def _count(example_inputs: Any) -> int:
    """Return the number of arguments in example inputs, 0 if unknown."""
    return len(example_inputs) if isinstance(example_inputs, (tuple, list)) else 0


def _demanded(model: nn.Module) -> tuple[int, float]:
    """Return the minimum and maximum number of positional arguments of a model."""
    try:
        parameters = inspect.signature(unwrapped(model).forward).parameters.values()
    except (TypeError, ValueError):
        return 1, 1
    given = [p for p in parameters if p.kind in _KINDS]
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    least = sum(p.default is p.empty for p in given)
    return least, float("inf") if is_open else len(given)


def _title(model: nn.Module) -> str:
    try:
        signature = str(inspect.signature(unwrapped(model).forward))
    except (TypeError, ValueError):
        signature = "(...)"
    return f"{type(unwrapped(model)).__name__}.forward takes {signature.partition(' ->')[0]}"
