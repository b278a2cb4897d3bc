"""NNI's evaluators: a user's training loop, ready to be run inside ``compress()``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from lilliput.errors import ConfigError, StageError


class Evaluator:
    """The base of evaluators; subclasses train a model for some steps or epochs."""

    optimizer: Any = None

    def train(
        self, model: Any, max_steps: int | None = None, max_epochs: int | None = None
    ) -> None:
        """Train the model."""
        raise NotImplementedError(f"{type(self).__name__} must override train().")

    def evaluate(self, model: Any) -> Any:
        """Return what the user's evaluation returns, None if there is none."""
        return None


class TorchEvaluator(Evaluator):
    """A training function in plain PyTorch, with what it needs.

    Parameters
    ----------
    training_func : callable
        ``training_func(model, optimizers, training_step, lr_schedulers, max_steps, max_epochs)``.
    optimizers : optimizer or list of one
        Made before, by ``nni.trace(SGD)(model.parameters(), …)`` or without it.
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
            *(model, self.optimizers, self.training_step),
            *(self.lr_schedulers, max_steps, max_epochs),
        )
        self.training_func(*offered[: _places(self.training_func)])

    def evaluate(self, model: Any) -> Any:
        """Run the evaluation function."""
        return None if self.evaluating_func is None else self.evaluating_func(model)


def _places(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a function takes."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 6
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in named for kind in kinds)


class _Elsewhere(Evaluator):
    """An evaluator around another library's trainer, which makes its own optimizer."""

    library = way = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise StageError(
            f"{type(self).__name__}: {self.library} makes the optimizer inside its own loop, which is "
            f"followed by a callback here. {self.way}"
        )


class LightningEvaluator(_Elsewhere):
    """Refused, with the callback that does the same."""

    library = "Lightning"
    way = (
        "Give lilliput.integrations.lightning.CompressionCallback(pruner) to the Trainer, call "
        "pruner.compress() and trainer.fit()."
    )


class TransformersEvaluator(_Elsewhere):
    """Refused, with the callback that does the same."""

    library = "the Trainer of Transformers"
    way = (
        "Add lilliput.integrations.transformers.CompressionCallback(pruner) to the Trainer, call "
        "pruner.compress() and trainer.train()."
    )
