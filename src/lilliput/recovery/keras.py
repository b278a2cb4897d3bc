"""Re-estimate the statistics of batch norms in a Keras model, which pruning has made wrong.

The mean and the variance of each batch are written into the norm just before it normalizes that batch, so
that it does what it does in training, whatever ``trainable``, ``momentum`` and ``renorm`` say; those of
all batches together are written at the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from lilliput.backends.keras.discover import layers_by_path
from lilliput.backends.keras.instrument import PreHook, quantizers_in
from lilliput.backends.keras.running import run
from lilliput.backends.keras.scopes import is_tracing, sync
from lilliput.backends.keras.variables import to_array
from lilliput.errors import UnsupportedModelError
from lilliput.recovery.norms import Moments, check_model, statistics_of


def recalibrate(
    model: Any, batches: Iterable[Any], forward: Callable[[Any, Any], Any] | None = None
) -> None:
    """Re-estimate the moving statistics of all batch norms from a few batches.

    Use it after pruning a model that is not trained any further; a few hundred examples are enough.
    Every example counts the same, however they are batched. Norms see each batch as they do in
    training, also those with ``trainable=False``; dropout is off. Steps that a mask hides are left out.

    Parameters
    ----------
    model : keras.Model
        A pruned model, masked or cut; changed in place.
    batches : iterable
        A data set or a list, with batches of at least 16 or so.
    forward : callable, optional
        ``forward(model, batch)``, which calls the model itself: ``predict`` would compile it. By default
        the model is called with the batch, and of a tuple ``(inputs, targets)`` with the inputs.

    Examples
    --------
    >>> import keras, numpy
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    >>> recalibrate(model, [numpy.array([[1.0, 0.0], [3.0, 4.0]], "float32")])
    >>> keras.ops.convert_to_numpy(model.layers[0].moving_mean).tolist()
    [2.0, 2.0]
    """
    layers = {id(layer): (path, layer) for path, layer in layers_by_path(model).items()}
    norms = [_Norm(path, layer) for path, layer in layers.values() if _is_norm(layer)]
    check_model(model, norms, quantizers_in(layer for _, layer in layers.values()))
    sync(model)
    before = [norm.read() for norm in norms]
    handles = [PreHook(norm.see).add_to(norm.layer) for norm in norms]
    try:
        run(model, batches, forward)
        found = statistics_of(norm.moments for norm in norms)
    except BaseException:
        for norm, held in zip(norms, before, strict=True):
            norm.write(held)
        raise
    finally:
        for handle in handles:
            handle.remove()
    for norm, statistics in zip(norms, found, strict=True):
        if statistics is not None:  # a norm that no batch reaches keeps its own
            norm.write(statistics)


class _Norm:
    """A batch norm, and what it has been given."""

    def __init__(self, path: str, layer: Any) -> None:
        self.layer, self.moments = layer, Moments(path)

    def see(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Take a batch into account, and make the norm normalize by it."""
        given = inspect.signature(self.layer.call).bind(*args, **kwargs).arguments
        rows = self._rows(next(iter(given.values())), given.get("mask"))
        self.moments.add(rows)
        self.write((rows.mean(1), rows.var(1)))

    def _rows(self, inputs: Any, mask: Any) -> Any:
        """Return the values of each channel that count."""
        if is_tracing() or type(inputs).__name__.endswith("Tracer"):
            raise UnsupportedModelError(
                f"recalibrate(): layer {self.moments.name!r} runs inside a compiled function or a loop, "
                "where what it is given cannot be seen; let forward call model(inputs, training=False). "
                "Batch norms in recurrent cells and TimeDistributed cannot be recalibrated."
            )
        values = np.moveaxis(to_array(inputs).astype("float64"), self.layer.axis, 0)
        rows = values.reshape(len(values), -1)
        return rows if mask is None else rows[:, to_array(mask).astype(bool).ravel()]

    def read(self) -> tuple[Any, Any]:
        return to_array(self.layer.moving_mean), to_array(self.layer.moving_variance)

    def write(self, statistics: tuple[Any, Any]) -> None:
        self.layer.moving_mean.assign(statistics[0])
        self.layer.moving_variance.assign(statistics[1])


def _is_norm(layer: Any) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)
