"""What an optimizer remembers of a weight that is new to it: zeros, unless it starts with other numbers.

An optimizer of torch is known. Any other one is asked: a second one of the same class and settings makes
one step with a tiny weight, and what it writes down first is recorded.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from lilliput.errors import ConfigError

_SIZES = (2, 3, 4, 5, 6)  # of the tiny weight: all differ, so that nothing else has its shape


class UnknownStateError(Exception):
    """It cannot be found out what an optimizer starts with."""


def first_values(optimizer: Any, parameter: Tensor) -> dict[str, float | None]:
    """Return what an optimizer starts with for each entry of a parameter, by name, where it is not zero.

    None is for tensors that do not have an entry for each of the parameter, though their shape may be the
    same. Raises :class:`UnknownStateError` if the numbers cannot be found out.
    """
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    if type(optimizer).__module__.startswith("torch.optim"):
        return _known_values(optimizer, group)
    sizes = _SIZES[: parameter.dim()]
    weight = torch.nn.Parameter(torch.zeros(sizes, dtype=parameter.dtype, device=parameter.device))
    arguments, missing = _arguments(optimizer, group)
    recorded = _recorded(optimizer, group, weight, arguments).items()
    found = {k: _one_number(k, x) if x.shape == weight.shape else None for k, x in recorded}
    if missing and any(found.values()):
        raise UnknownStateError(f"its argument {missing[0]!r} is not among its settings")
    return found


def check_first_values(optimizer: Any, parameter: Tensor) -> None:
    """Raise if it cannot be found out what an optimizer starts with."""
    try:
        first_values(optimizer, parameter)
    except UnknownStateError as error:
        raise ConfigError(
            f"optimizer: connections that come back must be new to {type(optimizer).__name__}, but it "
            f"cannot be found out what it remembers of a new weight ({error}). Use an optimizer of "
            "torch.optim, or one that can be created from its parameter groups alone."
        ) from None


def _known_values(optimizer: Any, group: dict[str, Any]) -> dict[str, float | None]:
    if isinstance(optimizer, torch.optim.Rprop):
        return {"step_size": float(group["lr"])}
    if isinstance(optimizer, torch.optim.Adagrad):
        return {"sum": float(group["initial_accumulator_value"])}
    return {}


def _recorded(
    optimizer: Any, group: dict[str, Any], weight: Tensor, arguments: dict[str, Any]
) -> dict[str, Tensor]:
    """Return the first tensors that an optimizer of the same kind writes down for a weight."""
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            twin = type(optimizer)([{**group, "params": [weight]}], **arguments)
            states = _States()
            for key, state in twin.state.items():
                states[key] = state
            twin.state = states
            weight.grad = torch.zeros_like(weight)
            twin.step()
    except Exception as error:  # of code that may be anyone's
        raise UnknownStateError(f"{type(error).__name__}: {error}") from error
    first: dict[str, Tensor] = states[weight].first
    return first


def _arguments(optimizer: Any, group: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments that make another optimizer like this one, and the names of unknown ones."""
    if any(isinstance(x, torch.optim.Optimizer) for x in vars(optimizer).values()):
        raise UnknownStateError("it has an optimizer inside")
    known = {**vars(optimizer), **optimizer.defaults, **group}
    names: list[str] = []
    for cls in type(optimizer).__mro__:
        own = list(inspect.signature(cls).parameters.values())[1:]
        names += [x.name for x in own if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
        if not any(x.kind is x.VAR_KEYWORD for x in own):  # nothing else is passed on
            break
    return {x: known[x] for x in names if x in known}, [x for x in names if x not in known]


def _one_number(name: str, values: Tensor) -> float:
    least, largest = float(values.min()), float(values.max())
    if least != largest:
        raise UnknownStateError(f"{name!r} starts with numbers from {least:.3g} to {largest:.3g}")
    return least


class _First(dict[str, Any]):
    """The state of one weight, with copies of the tensors that were written first."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Tensor] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self.first.setdefault(name, value.detach().clone())
        super().__setitem__(name, value)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a value, which is written if there is none."""
        if name not in self:
            self[name] = default
        return self[name]

    def update(self, *others: Any, **named: Any) -> None:
        """Write several values."""
        for name, value in dict(*others, **named).items():
            self[name] = value


class _States(defaultdict[Any, Any]):
    """The states of all weights of an optimizer."""

    def __init__(self) -> None:
        super().__init__(_First)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, _First):
            given, value = value, _First()
            value.update(given)
        super().__setitem__(key, value)
