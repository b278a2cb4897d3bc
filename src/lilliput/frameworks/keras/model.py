"""A model under compression: it passes the training flag to its layers, and its steps to compressors.

Like a layer, it gets a subclass of its own class while it is compressed. The subclass publishes whether
a call is in training mode, follows ``fit`` and ``train_on_batch`` for compressors that were
given its optimizer, and retraces its compiled functions when necessary.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import keras

from lilliput.errors import StageError, UnsupportedModelError
from lilliput.frameworks.keras.functions import retrace_if_due
from lilliput.frameworks.keras.learning import learned_in, reconcile
from lilliput.frameworks.keras.scopes import is_symbolic, is_tracing, outermost, publish, sync
from lilliput.frameworks.keras.shadow import subclass_like, unshadowed
from lilliput.frameworks.keras.variables import to_array

log = logging.getLogger("lilliput")

_STATE = "_lilliput_model"


class ModelState:
    """The state of a compressed model: its compressors, and the observers of its calls."""

    def __init__(self) -> None:
        self.compressors: list[Any] = []
        self.watchers: list[Watcher] = []
        self.recorders: list[Any] = []  # of distillers; see :mod:`features`
        self.has_training = True  # whether the model's own call takes the argument


class Watcher:
    """Calls a task with the inputs of a model."""

    def __init__(self, model: Any, task: Callable[[Any, Any], None]) -> None:
        self.model, self.task = model, task
        state_of(model).watchers.append(self)

    def remove(self) -> None:
        """Stop observing."""
        watchers = state_of(self.model).watchers
        if self in watchers:
            watchers.remove(self)


def state_of(model: Any) -> ModelState:
    """Return the compression state of a model."""
    found: ModelState = vars(model).setdefault(_STATE, ModelState())
    return found


def enter(model: Any, compressor: Any) -> None:
    """Add a compressor to a model."""
    state = state_of(model)
    if compressor in state.compressors:
        return
    if not state.compressors:
        state.has_training = bool(model._call_has_training_arg)
        object.__setattr__(model, "__class__", shadow_model(unshadowed(type(model))))
        _take_training(model, True)
    state.compressors.append(compressor)


def leave_idle(model: Any) -> None:
    """Undo :func:`enter` for compressors that no longer have wrappers in the layers."""
    state = state_of(model)
    state.compressors = [x for x in state.compressors if x.is_wrapped]
    if not state.compressors:
        if "_lilliput_base" in type(model).__dict__:
            object.__setattr__(model, "__class__", unshadowed(type(model)))
            _take_training(model, state.has_training)
        del vars(model)[_STATE]


def compressors_of(model: Any) -> list[Any]:
    """Return the compressors attached to a model, in order."""
    return list(vars(model)[_STATE].compressors) if _STATE in vars(model) else []


def _take_training(model: Any, takes: bool) -> None:
    """Make Keras pass the ``training`` argument to a model's call."""
    model._call_has_training_arg = takes
    model._call_has_context_arg = {**model._call_has_context_arg, "training": takes}


@cache
def shadow_model(base: Any) -> type:
    """Return the subclass of a model's class for a model under compression."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        state, training = state_of(self), kwargs.get("training")
        if not state.has_training:
            kwargs = {key: value for key, value in kwargs.items() if key != "training"}
        if is_symbolic():
            return base.call(self, *args, **kwargs)
        for watcher in list(state.watchers):
            watcher.task(args, kwargs)
        for recorder in state.recorders:
            recorder.begin(args, {**kwargs, "training": training})
        if training:
            _check_outermost(self)
        with publish(training):
            output = base.call(self, *args, **kwargs)
        for recorder in state.recorders:
            recorder.end(output)
        return output

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(base.compute_loss).bind(self, *args, **kwargs)
        trains = bool(bound.arguments.get("training", True))
        return with_distances(self, trains, lambda: base.compute_loss(self, *args, **kwargs))

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        retrace_if_due(self)
        reconcile(self)
        bound = inspect.signature(base.fit).bind(self, *args, **kwargs)
        followers = followers_of(self)
        if followers:
            bound.arguments["callbacks"] = _joined(bound.arguments.get("callbacks"), followers)
        return _followed(self, lambda: base.fit(*bound.args, **bound.kwargs))

    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        retrace_if_due(self)
        reconcile(self)
        result = _followed(self, lambda: base.train_on_batch(self, *args, **kwargs))
        for task in tasks_of(getattr(self, "optimizer", None)):
            task()
        return result

    def retraced(name: str) -> Callable[..., Any]:
        method = getattr(base, name)

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            retrace_if_due(self)
            return method(self, *args, **kwargs)

        return run

    members: dict[str, Any] = {
        name: retraced(name)
        for name in ("evaluate", "predict", "test_on_batch", "predict_on_batch")
    }
    call.__signature__ = inspect.signature(base.call)  # type: ignore[attr-defined]
    compute_loss.__signature__ = inspect.signature(base.compute_loss)  # type: ignore[attr-defined]
    members |= {"call": call, "fit": fit, "train_on_batch": train_on_batch}
    members["compute_loss"] = compute_loss
    # The trained variables include the learned ones, which ``weights`` hides.
    members["trainable_weights"] = property(lambda self: self.trainable_variables)
    return subclass_like(base, members)


def with_distances(model: Any, trains: bool, compute: Callable[[], Any]) -> Any:
    """Return the loss of a model plus the terms of its distillers in training.

    Without a loss of its own, the distance to the teacher is the whole loss, and no labels are needed.
    """
    distillers = [x for x in state_of(model).compressors if x.kind == "distiller"]
    distances = [x.loss() for x in distillers if trains and x.has_run]
    has_loss = model._compile_loss is not None or bool(model.losses)
    is_alone = bool(distances) and (not has_loss or any(x.is_alone for x in distillers))
    total = 0.0 if is_alone else compute()
    for distance in distances:
        total = total + distance
    return total


def _check_outermost(model: Any) -> None:
    """Raise if a model with learned variables is trained inside another one that does not know them."""
    outer = outermost()
    if outer is None or outer is model or "_lilliput_base" in type(outer).__dict__:
        return
    if learned_in(model):
        raise UnsupportedModelError(
            f"the model {model.name!r} learns scales, but {outer.name!r}, which contains it, is trained; "
            "create the quantizer for the outer model (op_names select layers of an inner model: 'inner/*')."
        )


def _followed(model: Any, run: Callable[[], Any]) -> Any:
    """Run training whose steps are counted elsewhere than in the optimizer.

    The optimizer is marked, not this thread: with several devices, each trains in its own thread.
    """
    marked = [x for x in _chain(getattr(model, "optimizer", None)) if _FOLLOWED not in vars(x)]
    for optimizer in marked:
        vars(optimizer)[_FOLLOWED] = True
    try:
        return run()
    finally:
        for optimizer in marked:
            vars(optimizer).pop(_FOLLOWED, None)


def _joined(callbacks: Any, followers: list[keras.callbacks.Callback]) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        for follower in followers:
            callbacks.append(follower)
        return callbacks
    given = [] if callbacks is None else callbacks
    return [*(given if isinstance(given, (list, tuple)) else [given]), *followers]


# -- following an optimizer ------------------------------------------------------------------------

_TASKS = "_lilliput_tasks"
_FOLLOWED = "_lilliput_followed"


def tasks_of(optimizer: Any) -> list[Callable[[], None]]:
    """Return the tasks to run after each step of an optimizer."""
    return [task for part in _chain(optimizer) for task in vars(part).get(_TASKS, ())]


def _chain(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and its inner ones: loss scaling, in mixed precision, wraps the user's."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def followers_of(model: Any) -> list[keras.callbacks.Callback]:
    """Return a callback that runs the tasks after each step of a model's optimizer."""
    tasks = tasks_of(getattr(model, "optimizer", None))
    return [StepFollower(tasks)] if tasks else []


class OptimizerTask:
    """A task to run after each step of an optimizer."""

    def __init__(self, optimizer: Any, task: Callable[[], None]) -> None:
        self.optimizer, self.task = optimizer, task
        held = vars(optimizer).get(_TASKS)
        if held is None:
            held = vars(optimizer)[_TASKS] = []
            _watch(optimizer)
        held.append(task)

    def remove(self) -> None:
        """Stop running it."""
        held = vars(self.optimizer).get(_TASKS, [])
        if self.task in held:
            held.remove(self.task)
        if not held:
            vars(self.optimizer).pop(_TASKS, None)
            vars(self.optimizer).pop("apply", None)


def _watch(optimizer: Any) -> None:
    """Run the tasks after each eager ``apply``, in a custom training loop.

    In ``fit`` a callback runs them, since there ``apply`` is part of a graph.
    """
    plain = optimizer.apply

    def apply(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if _FOLLOWED in vars(optimizer):
            return result
        if is_tracing():
            log.warning(
                "an optimizer that a compressor follows runs inside a compiled function, where its steps "
                "cannot be observed: call the compressor's step() after each of them."
            )
            return result
        for task in tasks_of(optimizer):
            task()
        return result

    vars(optimizer)["apply"] = apply


class StepFollower(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls tasks after each step of ``fit``, as often as there were steps."""

    def __init__(self, tasks: list[Callable[[], None]]) -> None:
        super().__init__()
        self.tasks = tasks
        self.done = 0  # steps before the current batch, where a batch may be several steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Record the number of optimizer steps so far; a pruner may have reset it to 0."""
        if self.model.steps_per_execution > 1:
            self.done = self._iterations()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Call the tasks; with ``steps_per_execution`` there were several steps."""
        count = 1
        if self.model.steps_per_execution > 1:
            count = self._iterations() - self.done
        for _ in range(count):
            for task in self.tasks:
                task()

    def _iterations(self) -> int:
        sync(self.model)
        return int(to_array(self.model.optimizer.iterations))


class CompressionCallback(StepFollower):
    """Follow the epochs and steps of ``model.fit`` for a compressor.

    Pass it to ``fit`` in ``callbacks``. A compressor with the model's optimizer follows the
    steps by itself; this adds the epochs.

    Parameters
    ----------
    compressor : Compressor
        A pruner or quantizer of the trained model.

    Examples
    --------
    >>> import keras, numpy
    >>> from lilliput.keras import AGPPruner, CompressionCallback
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(10)])
    >>> pruner = AGPPruner(model, [{"final_sparsity": 0.8, "end_epoch": 2}])
    >>> model = pruner.compress()
    >>> model.compile("sgd", "mse")
    >>> data = numpy.ones((8, 4)), numpy.ones((8, 10))
    >>> history = model.fit(*data, epochs=3, verbose=0, callbacks=[CompressionCallback(pruner)])
    >>> int(keras.ops.sum(model.layers[0].kernel == 0))
    32
    """

    def __init__(self, compressor: Any) -> None:
        super().__init__([])
        self.compressor = compressor

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise if the compressor is not attached, or if another model is trained."""
        super().on_train_begin(logs)
        if not self.compressor.is_wrapped:
            raise StageError(
                f"fit was called with the callback of {type(self.compressor).__name__} before compress(), or "
                "after strip(): there is nothing to follow."
            )
        if self.model is not self.compressor.bound_model:
            raise StageError(
                f"this callback belongs to {type(self.compressor).__name__} for the model "
                f"{self.compressor.bound_model.name!r}, but fit trains {self.model.name!r}; create the "
                "compressor for that model (op_names select layers of an inner model: 'inner/*')."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Pass the epoch to the compressor."""
        is_followed = bool(self.compressor._step_handles) and bool(followers_of(self.model))
        self.tasks = [] if is_followed else [self.compressor._on_step]
        self.compressor.update_epoch(epoch)
