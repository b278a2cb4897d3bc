"""The initial optimizer state of a new weight: zeros, unless the optimizer starts with other numbers.

The optimizers of torch are known. For any other one, a second instance with the same settings makes one
step on a tiny weight, and its first writes to the state are recorded.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from lilliput.errors import ConfigError

_SIZES = (2, 3, 4, 5, 6)  # of the tiny weight: all differ, so that nothing else has its shape
_OF_WEIGHTS = ("params", "param_names")  # all else in a group is a setting


class UnknownStateError(Exception):
    """The initial state of an optimizer cannot be determined."""


def first_values(optimizer: Any, parameter: Tensor) -> dict[str, float | None]:
    """Return the initial values of an optimizer's state for a parameter, by name, where they are not zero.

    None marks tensors without one entry per entry of the parameter, even if they have its shape. Raises
    :class:`UnknownStateError` if the numbers cannot be found out.
    """
    optimizer = _inside(optimizer)
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    if _is_of_torch(type(optimizer)):
        return _known_values(optimizer, group)
    sizes = _SIZES[: parameter.dim()]
    weight = torch.nn.Parameter(torch.zeros(sizes, dtype=parameter.dtype, device=parameter.device))
    arguments, missing = _arguments(optimizer, group)
    try:
        recorded = _recorded(optimizer, group, weight, arguments)
    except UnknownStateError:
        if _is_of_torch(type(optimizer).step):  # only its constructor is another one
            return _known_values(optimizer, group)
        raise
    found = {k: _one_number(k, x) if x.shape == weight.shape else None for k, x in recorded.items()}
    suspects = missing if any(found.values()) else [x for x in missing if _is_number(x.default)]
    if suspects:
        raise UnknownStateError(f"its argument {suspects[0].name!r} is not among its settings")
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


def _inside(optimizer: Any) -> Any:
    """Return the optimizer in a wrapper that only forwards to it, such as Fabric's."""
    for x in vars(optimizer).values():
        if isinstance(x, torch.optim.Optimizer) and x is not optimizer:
            held = getattr(x, "state", None), getattr(x, "param_groups", None)
            if held[0] is optimizer.state and held[1] is optimizer.param_groups:
                return _inside(x)
    return optimizer


def _is_of_torch(code: Any) -> bool:
    return f"{code.__module__}.".startswith("torch.optim.")


def _known_values(optimizer: Any, group: dict[str, Any]) -> dict[str, float | None]:
    if isinstance(optimizer, torch.optim.Rprop):
        return {"step_size": float(group["lr"])}
    if isinstance(optimizer, torch.optim.Adagrad):
        return {"sum": float(group["initial_accumulator_value"])}
    return {}


def _recorded(
    optimizer: Any, group: dict[str, Any], weight: Tensor, arguments: dict[str, Any]
) -> dict[str, Tensor]:
    """Return the first tensors that an optimizer of the same kind writes down for a weight.

    Settings are copied, since a step may count in a tensor of its group.
    """
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            settings = copy.deepcopy({k: x for k, x in group.items() if k not in _OF_WEIGHTS})
            twin = type(optimizer)([{**settings, "params": [weight]}], **arguments)
            states = _States()
            for key, state in twin.state.items():
                states[key] = state
            twin.state = states
            weight.grad = torch.zeros_like(weight)
            _step(twin)
    except Exception as error:  # of code that may be anyone's
        raise UnknownStateError(f"{type(error).__name__}: {error}") from error
    first: dict[str, Tensor] = states[weight].first
    return first


def _step(optimizer: Any) -> None:
    """Make a step without the global optimizer hooks, which torch calls around the method."""
    step = type(optimizer).step
    (step.__wrapped__ if getattr(step, "hooked", False) else step)(optimizer)


def _arguments(
    optimizer: Any, group: dict[str, Any]
) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    """Return the arguments that make another optimizer like this one, and those that are unknown."""
    if any(isinstance(x, torch.optim.Optimizer) for x in vars(optimizer).values()):
        raise UnknownStateError("it has an optimizer inside")
    known = {**vars(optimizer), **optimizer.defaults, **group}
    named: list[inspect.Parameter] = []
    for cls in type(optimizer).__mro__:
        own = list(inspect.signature(cls).parameters.values())[1:]
        named += [x for x in own if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
        if not any(x.kind is x.VAR_KEYWORD for x in own):  # nothing else is passed on
            break
    given = {x.name: known[x.name] for x in named if x.name in known}
    return given, [x for x in named if x.name not in known]


def _is_number(default: Any) -> bool:
    """Whether an argument is a number (not a flag), which may be an initial value."""
    return isinstance(default, (int, float)) and not isinstance(default, bool)


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
