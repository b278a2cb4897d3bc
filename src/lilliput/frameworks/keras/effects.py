"""Inputs and outputs of each layer, with the gradients of both through that layer alone.

Zeros are added to the inputs and outputs of an observed layer: the derivatives of the loss with respect to
them are these gradients, on TensorFlow, JAX and torch alike. A first run of each batch records the calls of
all layers while tensors have values; the second one is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lilliput.config.layer import LayerInfo
from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.instrument import Handle
from lilliput.frameworks.keras.running import Snapshot, derive, no_grad
from lilliput.frameworks.keras.scopes import has_value
from lilliput.frameworks.keras.sidecar import is_floating, sidecar_of
from lilliput.frameworks.keras.variables import raw, tensor_of

Tensor = Any
# task(input, its gradient through this layer, output, its gradient); None if there is none.
Task = Callable[[Tensor, Any, Tensor, Tensor], None]

_SMALLEST = 1e-12  # lower bound of a probability before its logarithm


class Tap(Handle):
    """Records the calls of a layer, and adds zeros to them.

    Parameters
    ----------
    task : callable
        Called for each call once the gradients are known.
    """

    kind = "taps"

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seen: list[tuple[Tensor, Tensor]] = []  # the input and the output of each call
        self.zeros: list[tuple[Any, Tensor]] | None = None  # for the next calls; None to record
        self.is_open = False
        self._given: Tensor = None

    def start(self, zeros: Iterable[tuple[Any, Tensor]] | None = None) -> None:
        """Record the next calls, or add zeros to them."""
        self.is_open = True
        self.zeros = None if zeros is None else list(zeros)
        if zeros is None:
            self.seen = []

    def stop(self) -> None:
        """Stop observing the layer."""
        self.is_open = False

    def before(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the layer."""
        if not self.is_open:
            return args
        self._given = args[0] if args else None
        if not self.zeros or self.zeros[0][0] is None:
            return args
        return (args[0] + self.zeros[0][0], *args[1:])

    def after(self, output: Any) -> Any:
        """Return the output of the layer."""
        if not self.is_open:
            return output
        if self.zeros is not None:
            return output + self.zeros.pop(0)[1] if self.zeros else output
        if is_floating(output) and ops.is_tensor(self._given) and has_value(output):
            self.seen.append((self._given, output))
        else:  # inside a loop, or several tensors: this layer cannot be observed
            self.stop()
            self.seen = []
        return output


def watch_effects(layer: LayerInfo, task: Task) -> list[Tap]:
    """Observe every layer that owns a weight; return removable handles."""
    return [Tap(task).add_to(owner.module) for owner in layer.owners]


def taps_in(model: Any) -> list[Tap]:
    """Return the taps on the layers of a model."""
    sidecars = [sidecar_of(layer) for layer in model._flatten_layers()]
    return [tap for sidecar in sidecars if sidecar is not None for tap in sidecar.taps]


def run(
    model: Any,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Any],
    taps: Sequence[Tap],
    task: Callable[[], None],
) -> None:
    """Run batches, and call the tasks of the taps, then the task; the model is not changed."""
    before = Snapshot(model)
    try:
        for batch in batches:
            _show(model, loss, batch, taps)
            task()
    finally:
        for tap in taps:
            tap.stop()
        before.restore()


def _show(model: Any, loss: Callable[[Any, Any], Any], batch: Any, taps: Sequence[Tap]) -> None:
    """Run one batch twice, and call the tasks of the taps."""
    for tap in taps:
        tap.start()
    with no_grad():
        loss(model, batch)
    watched = [tap for tap in taps if tap.is_open and tap.seen]
    pairs = [[_zeros(given, output) for given, output in tap.seen] for tap in watched]
    flat = [x for tap in pairs for pair in tap for x in pair if x is not None]

    def compute(zeros: Sequence[Tensor]) -> Any:
        given = iter(zeros)
        for tap, held in zip(watched, pairs, strict=True):
            tap.start([(None if x is None else next(given), next(given)) for x, _ in held])
        return loss(model, batch)

    found = iter(derive(compute, flat))
    for tap in taps:
        tap.stop()  # tasks may call the layers
    for tap, held in zip(watched, pairs, strict=True):
        for (given, output), (x, _) in zip(tap.seen, held, strict=True):
            read = None if x is None else next(found)
            returned = next(found)
            if returned is not None:
                tap.task(given, read, output, returned)


def _zeros(given: Tensor, output: Tensor) -> tuple[Any, Tensor]:
    """Return the zeros for a call; None for an integer input, such as tokens."""
    return ops.zeros_like(given) if is_floating(given) else None, ops.zeros_like(output)


def weight_effects(
    layer: LayerInfo, changes: Sequence[Tensor], inputs: Tensor, gradient: Tensor
) -> list[Tensor]:
    """Return, for each change of a weight, by how much it moves the loss of each example.

    Layers are run with and without a change, activation included.
    """
    variable = raw(layer.module, str(layer.weight_name))
    weight = ops.stop_gradient(tensor_of(variable))

    def returned(value: Tensor) -> Tensor:
        with keras.StatelessScope([(variable, value)]):
            return layer.module(inputs)

    with no_grad():
        before = returned(weight)
        moved = [gradient * (returned(weight + change) - before) for change in changes]
        rows = [ops.reshape(ops.cast(x, "float32"), (x.shape[0], -1)) for x in moved]
        return [ops.sum(x, axis=1) for x in rows]


def sampled_loss(outputs: Any, seed: int) -> Tensor | None:
    """Return minus the log-likelihood of classes sampled from the model's own predictions.

    The classes are the same as on torch. Probabilities are used directly, other outputs as logits. None
    if the outputs are not one row of classes per example.
    """
    if not is_floating(outputs) or len(outputs.shape) != 2 or outputs.shape[1] < 2:
        return None
    values = ops.cast(outputs, "float32")
    # In a graph values are unknown, so both are computed.
    are_shares = ops.logical_and(
        ops.all(values >= 0), ops.all(ops.abs(ops.sum(values, axis=1) - 1) < 1e-2)
    )
    logs = ops.where(
        are_shares, ops.log(ops.maximum(values, _SMALLEST)), ops.log_softmax(values, axis=1)
    )
    reached = ops.cumsum(ops.exp(ops.stop_gradient(logs)), axis=1)
    draws = np.random.default_rng(seed).random((outputs.shape[0], 1))
    is_below = reached < ops.convert_to_tensor(draws, "float32")
    drawn = ops.sum(ops.cast(is_below, "int32"), axis=1, keepdims=True)
    drawn = ops.minimum(drawn, outputs.shape[1] - 1)
    return -ops.sum(ops.take_along_axis(logs, drawn, axis=1))


def probe(outputs: Any) -> Tensor:
    """Return a random combination of all outputs, each tensor divided by its standard deviation."""
    found = [x for x in tree.flatten(outputs) if is_floating(x)]
    if not found:
        raise UnsupportedModelError(
            f"the model returned {type(outputs).__name__}, which contains no tensor to differentiate."
        )
    total: Any = 0.0
    for x in found:
        values, shape = ops.cast(x, "float32"), tuple(x.shape)
        signs = np.random.default_rng(int(np.prod(shape))).choice([-1.0, 1.0], shape)
        spread = ops.maximum(ops.std(ops.stop_gradient(values)), _SMALLEST)
        total = total + ops.sum(values * ops.convert_to_tensor(signs, "float32") / spread)
    return total
