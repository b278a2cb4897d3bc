"""NNI's evaluators: a user's training loop that runs inside ``compress()``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lilliput.errors import ConfigError


class Evaluator:
    """Base class of evaluators; subclasses train a model for some steps or epochs."""

    optimizer: Any = None
    dummy_input: Any = None
    compressors: tuple[Any, ...] = ()  # that follow the training while it runs
    is_looking: bool = False  # whether its steps run without changing weights

    @contextmanager
    def serving(self, *compressors: Any, is_looking: bool = False) -> Iterator[None]:
        """Set the compressors that follow the training in this context."""
        before = self.compressors, self.is_looking
        self.compressors, self.is_looking = compressors, is_looking
        try:
            yield
        finally:
            self.compressors, self.is_looking = before

    @property
    def distillers(self) -> list[Any]:
        """The compressors in training that add to its loss."""
        return [x for x in self.compressors if hasattr(x, "joined_loss") and not self.is_looking]

    def with_teachers(self, step: Any) -> Any:
        """Return ``step(batch, …)`` with the distillers' terms added to its loss."""
        distillers = self.distillers
        if not distillers:
            return step

        @functools.wraps(step)
        def joined(batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(batch, *args, **kwargs)
            for distiller in distillers if torch.is_grad_enabled() else ():
                result = _with_loss(result, functools.partial(distiller.joined_loss, batch=batch))
            return result

        return joined

    def train(
        self, model: Any, max_steps: int | None = None, max_epochs: int | None = None
    ) -> None:
        """Train the model."""
        raise NotImplementedError(f"{type(self).__name__} must override train().")

    def evaluate(self, model: Any) -> Any:
        """Return the result of the user's evaluation, or None if there is none."""
        return None


class TorchEvaluator(Evaluator):
    """A training function in plain PyTorch, with its arguments.

    Parameters
    ----------
    training_func : callable
        ``training_func(model, optimizers, training_step, lr_schedulers, max_steps, max_epochs)``.
    optimizers : optimizer or list of one
        Created before, by ``nni.trace(SGD)(model.parameters(), …)`` or without it.
    training_step : callable
        The criterion (v2), or ``training_step(batch, model)`` (v3).
    lr_schedulers, dummy_input, evaluating_func : optional
        As in NNI.
    """

    def __init__(
        self,
        training_func: Callable[..., Any],
        optimizers: Any,
        training_step: Callable[..., Any] | None = None,
        lr_schedulers: Any = None,
        dummy_input: Any = None,
        evaluating_func: Callable[..., Any] | None = None,
        *,
        criterion: Callable[..., Any] | None = None,
    ) -> None:
        self.training_func, self.evaluating_func = training_func, evaluating_func
        self.training_step = training_step if criterion is None else criterion
        self.optimizers, self.lr_schedulers = optimizers, lr_schedulers
        self.dummy_input = dummy_input
        several = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
        if len(several) != 1 or not hasattr(several[0], "step"):
            raise ConfigError(
                f"optimizers: received {len(several)} of {type(several[0]).__name__!r}, expected one "
                "torch.optim.Optimizer."
            )
        self.optimizer = several[0]

    def train(
        self, model: Any, max_steps: int | None = None, max_epochs: int | None = None
    ) -> None:
        """Run the training function; it counts steps and epochs itself."""
        offered = (
            *(model, self.optimizers, self.with_teachers(self.training_step)),
            *(self.lr_schedulers, max_steps, max_epochs),
        )
        arguments = offered[: _places(self.training_func)]
        if not self.is_looking:
            self.training_func(*arguments)
            return
        with in_evaluation(model), without_steps(self.optimizer):
            self.training_func(*arguments)

    def evaluate(self, model: Any) -> Any:
        """Run the evaluation function."""
        return None if self.evaluating_func is None else self.evaluating_func(model)


def _with_loss(result: Any, change: Callable[[Any], Any]) -> Any:
    """Return the result of a training step with another loss: itself, its first part, or its 'loss'."""
    if isinstance(result, Mapping):
        return {**result, "loss": change(result["loss"])}
    if isinstance(result, (tuple, list)):
        return type(result)([change(result[0]), *result[1:]])
    return change(result)


def _places(function: Callable[..., Any]) -> int:
    """Return the number of positional arguments of a function."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 6
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in named for kind in kinds)


@contextmanager
def without_steps(*optimizers: Any) -> Iterator[None]:
    """Prevent optimizers from stepping: a closure is called, but nothing is changed."""

    def hold(optimizer: Any) -> Callable[..., Any]:
        def step(closure: Callable[[], Any] | None = None) -> Any:
            optimizer._opt_called = True  # which learning rate schedulers check
            return None if closure is None else closure()

        return step

    before = [(optimizer, optimizer.__dict__.get("step")) for optimizer in optimizers]
    for optimizer in optimizers:
        optimizer.step = hold(optimizer)
    try:
        yield
    finally:
        for optimizer, own in before:
            del optimizer.step
            if own is not None:
                optimizer.step = own


@contextmanager
def in_evaluation(model: Any) -> Iterator[None]:
    """Keep a model in evaluation mode, whatever its training function does."""
    model.eval()
    model.train = lambda mode=True: model
    try:
        yield
    finally:
        del model.train
