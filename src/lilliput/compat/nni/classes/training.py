"""Run the training functions of NNI's users, with the arguments that they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lilliput.errors import ConfigError

_NAMES = {
    "optimizer": ("optimizer", "optimizers", "optim", "opt", "traced_optimizer"),
    "criterion": ("criterion", "criterions", "loss_fn", "loss_func", "loss", "loss_function"),
    "epoch": ("epoch", "epochs", "epoch_num", "epoch_idx"),
    "callback": ("callback",),
}


def call_trainer(
    trainer: Callable[..., Any], model: Any, optimizer: Any, criterion: Any, epoch: int
) -> Any:
    """Call ``trainer(model, …)`` with arguments by the names of its parameters.

    A parameter of another name keeps its default, so that an epoch is never passed as a scheduler. The
    second and the third, if they have no default, are the optimizer and the criterion, whatever their
    names.
    """
    # Optimizer hooks do what v1's callback did after backward().
    values = {"optimizer": optimizer, "criterion": criterion, "epoch": epoch, "callback": _nothing}
    known = {name: key for key, names in _NAMES.items() for name in names}
    positional: list[Any] = [model]
    named: dict[str, Any] = {}
    parameters = list(inspect.signature(trainer).parameters.values())[1:]
    for place, parameter in enumerate(parameters):
        key = known.get(parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD:
            taken = {known.get(p.name) for p in parameters} | {"callback"}
            named |= {k: v for k, v in values.items() if k not in taken}
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif key is not None:
            named[parameter.name] = values[key]
        elif parameter.default is not parameter.empty:
            continue
        elif place < 2 and len(positional) == place + 1:
            positional.append((optimizer, criterion)[place])
        else:
            raise ConfigError(
                f"trainer: its parameter {parameter.name!r} has no default and is not one of model, "
                "optimizer, criterion and epoch, the arguments of a trainer."
            )
    return trainer(*positional, **named)


def _nothing() -> None:
    """Do nothing."""


@contextmanager
def training_mode(model: Any) -> Iterator[None]:
    """Put a model into training mode while a trainer runs, as NNI did."""
    was_training = model.training
    model.train()
    try:
        yield
    finally:
        model.train(was_training)
