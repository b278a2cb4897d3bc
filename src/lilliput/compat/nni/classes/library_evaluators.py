"""Evaluators for the trainers of Lightning and transformers, which create their own optimizers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from lilliput.compat.nni.classes.evaluators import Evaluator, in_evaluation, without_steps
from lilliput.errors import ConfigError
from lilliput.integrations.following import Following, torch_optimizer


class _Steps(Following):
    """Compressors that follow each step, but not the library's epochs."""

    def start(self, epoch: int, step: int) -> None:
        """Do nothing: the pruner whose ``compress()`` is running moves the schedules."""


class _Held:
    """Part of a callback: optimizers that make no step until the training ends."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(without_steps(*optimizers))

    def release(self) -> None:
        self._stack.close()


class LightningEvaluator(Evaluator):
    """A Lightning ``Trainer`` with its data.

    Parameters
    ----------
    trainer : Trainer
        Created by ``nni.trace(Trainer)(...)``: it is recreated for each run, with that run's steps or epochs.
    data_module : LightningDataModule
        The data.
    dummy_input : optional
        Inputs of the model.
    """

    def __init__(self, trainer: Any, data_module: Any, dummy_input: Any = None) -> None:
        if not hasattr(trainer, "trace_symbol"):
            raise ConfigError(
                f"LightningEvaluator: received a plain {type(trainer).__name__}, expected one that can be "
                "recreated: nni.trace(Trainer)(...)."
            )
        self.trainer, self.data_module, self.dummy_input = trainer, data_module, dummy_input

    def train(
        self, model: Any, max_steps: int | None = None, max_epochs: int | None = None
    ) -> None:
        """Fit the model, with the compressors in a callback."""
        limits: dict[str, Any] = {}
        if max_steps is not None or max_epochs is not None:
            limits["max_steps"] = -1 if max_steps is None else max_steps
            limits["max_epochs"] = -1 if max_epochs is None else max_epochs
        step = self.with_teachers(model.training_step)
        joined = {"training_step": step} if self.distillers else {}
        with _looking(model) if self.is_looking else _replaced(model, joined):
            self._made(**limits).fit(model, datamodule=self.data_module)

    def evaluate(self, model: Any) -> Any:
        """Validate the model; return the metric ``default`` if it is logged, otherwise all."""
        if not _defines(model, "validation_step"):
            return None
        found = self._made().validate(model, datamodule=self.data_module, verbose=False)
        metrics = found[0] if found else {}
        return metrics.get("default", metrics)

    def _made(self, **changes: Any) -> Any:
        trainer = self.trainer
        given = {**trainer.trace_kwargs, **changes}
        callbacks = given.get("callbacks") or []
        callbacks = [*callbacks] if isinstance(callbacks, (list, tuple)) else [callbacks]
        own = [_following(self.compressors)] if self.compressors else []
        own += [_holding()] if self.is_looking else []
        return trainer.trace_symbol(*trainer.trace_args, **given | {"callbacks": callbacks + own})


def _following(compressors: Sequence[Any]) -> Any:
    """Return a Lightning callback with which compressors follow the steps."""
    callback = import_module("lilliput.integrations.lightning").CompressionCallback(*compressors)
    callback.following = _Steps(compressors)
    return callback


def _holding() -> Any:
    """Return a Lightning callback that prevents optimizers from stepping."""
    base = import_module("lilliput.integrations.lightning").CompressionCallback.__base__

    class Hold(base):  # type: ignore[misc, valid-type]
        held = _Held([])  # until the fit starts

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.held = _Held(trainer.optimizers)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self.held.release()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.held.release()

    return Hold()


class TransformersEvaluator(Evaluator):
    """A ``Trainer`` of transformers with its model and data.

    Parameters
    ----------
    trainer : Trainer
        Created by ``nni.trace(Trainer)(...)``, or without it.
    dummy_input : optional
        Inputs of the model.
    """

    def __init__(self, trainer: Any, dummy_input: Any = None) -> None:
        if not hasattr(trainer, "args") or not hasattr(trainer, "add_callback"):
            raise ConfigError(
                f"TransformersEvaluator: received {type(trainer).__name__!r}, expected a transformers "
                "Trainer: nni.trace(Trainer)(model=model, args=args, ...)."
            )
        self.trainer, self.dummy_input = trainer, dummy_input

    def train(
        self, model: Any, max_steps: int | None = None, max_epochs: int | None = None
    ) -> None:
        """Train the model with the compressors in a callback; the Trainer is restored afterwards."""
        trainer, args = self.trainer, self.trainer.args
        before = (trainer.optimizer, trainer.lr_scheduler, args.max_steps, args.num_train_epochs)
        trainer.model = trainer.model_wrapped = model
        if max_steps is not None or max_epochs is not None:
            args.max_steps = -1 if max_steps is None else max_steps
            args.num_train_epochs = args.num_train_epochs if max_epochs is None else max_epochs
        callback = _trainer_callback(self.compressors, self.is_looking)
        trainer.add_callback(callback)
        try:
            with _looking(model) if self.is_looking else _replaced(trainer, self._joined()):
                trainer.train()
        finally:
            callback.held.release()  # an exception ends a training without calling the callback
            trainer.remove_callback(callback)
            trainer.optimizer, trainer.lr_scheduler, args.max_steps, args.num_train_epochs = before

    def _joined(self) -> dict[str, Any]:
        """Return the Trainer's loss with the distillers' terms; its batch is the second argument."""
        compute = self.trainer.compute_loss
        step = self.with_teachers(lambda batch, model, **more: compute(model, batch, **more))
        joined = {"compute_loss": lambda model, batch, **more: step(batch, model, **more)}
        return joined if self.distillers else {}

    def evaluate(self, model: Any) -> Any:
        """Evaluate the model; return the metric ``default`` if there is one, otherwise all."""
        if getattr(self.trainer, "eval_dataset", None) is None:
            return None
        self.trainer.model = self.trainer.model_wrapped = model
        metrics = self.trainer.evaluate()
        return metrics.get("default", metrics)


def _trainer_callback(compressors: Sequence[Any], is_looking: bool) -> Any:
    transformers = import_module("transformers")

    class Follow(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        held = _Held([])  # until the training starts

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            optimizer = torch_optimizer(kwargs["optimizer"])
            if compressors:
                _Steps(compressors).bind([optimizer])
            self.held = _Held([optimizer] if is_looking else [])

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.held.release()

    return Follow()


@contextmanager
def _replaced(holder: Any, methods: dict[str, Any]) -> Iterator[None]:
    """Replace methods of an object temporarily."""
    before = {name: vars(holder)[name] for name in methods if name in vars(holder)}
    vars(holder).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(holder)[name]
        vars(holder).update(before)


@contextmanager
def _looking(model: Any) -> Iterator[None]:
    """Run a model in evaluation mode in a library's training loop, which would warn about it."""
    with in_evaluation(model), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
        yield


def _defines(model: Any, name: str) -> bool:
    """Whether a LightningModule overrides a step."""
    return any(
        name in cls.__dict__ for cls in type(model).__mro__ if "lightning" not in cls.__module__
    )
