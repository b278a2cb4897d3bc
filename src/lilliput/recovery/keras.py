"""Re-estimate the statistics of batch norms in a Keras model, which pruning has made wrong.

The statistics for a batch are written into each norm just before it normalizes that batch, so that it does
what it does in training, whatever ``trainable``, ``momentum`` and ``renorm`` say; those for all batches
together are written at the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.instrument import PreHook, quantizers_in
from lilliput.frameworks.keras.running import call, no_grad
from lilliput.frameworks.keras.scopes import is_tracing, sync
from lilliput.frameworks.keras.variables import to_array
from lilliput.recovery.norms import Renewal, check_model, check_original, renew


def recalibrate(
    model: Any,
    batches: Iterable[Any],
    forward: Callable[[Any, Any], Any] | None = None,
    *,
    original: Any = None,
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
        A data set or a list, with batches of at least 16 or so. Without ``original`` they must be like
        those that the model was trained on, all classes included: a norm takes over what it sees.
    forward : callable, optional
        ``forward(model, batch)``, which calls the model itself: ``predict`` would compile it. By default
        the model is called with the batch, and of a tuple ``(inputs, targets)`` with the inputs.
    original : keras.Model, optional
        The model before it was pruned. Each norm then puts out, in mean and variance, what it puts out
        there, on any batches. The model must still be a masked one: call it before ``speedup``.

    Examples
    --------
    >>> import keras, numpy
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    >>> recalibrate(model, [numpy.array([[1.0, 0.0], [3.0, 4.0]], "float32")])
    >>> keras.ops.convert_to_numpy(model.layers[0].moving_mean).tolist()
    [2.0, 2.0]
    """
    norms = _norms_of(model)
    check_model(model, norms, quantizers_in(layers_by_path(model).values()))
    others = {} if original is None else _norms_of(original)
    if original is not None:
        if len(others) == len(norms):  # by their order: Keras counts on in names of a second model
            others = dict(zip(norms, others.values(), strict=True))
        check_original(original is model, _sizes(norms), _sizes(others))
    models = [model] if original is None else [original, model]
    for each in models:
        sync(each)
    before = {name: _statistics(norm) for name, norm in norms.items()}
    renewals = {name: _renewal(name, norm, others.get(name)) for name, norm in norms.items()}
    hooks = [_hook(norms[name], name, one.see) for name, one in renewals.items()]
    hooks += [
        _hook(others[name], name, one.see_original) for name, one in renewals.items() if others
    ]
    try:
        with no_grad():
            for batch in batches:
                for each in models:
                    (forward or call)(each, batch)
        renew(renewals.values(), lambda seen: seen)
    except BaseException:
        for name, held in before.items():
            _write(norms[name], *held)
        raise
    finally:
        for hook in hooks:
            hook.remove()


def _norms_of(model: Any) -> dict[str, Any]:
    """Return each batch norm under its first path."""
    found = {id(layer): (path, layer) for path, layer in reversed(layers_by_path(model).items())}
    norms = [x for x in found.values() if isinstance(x[1], keras.layers.BatchNormalization)]
    return dict(reversed(norms))


def _sizes(norms: dict[str, Any]) -> dict[str, int]:
    return {path: int(norm.moving_mean.shape[0]) for path, norm in norms.items()}


def _statistics(norm: Any) -> tuple[Any, Any]:
    return to_array(norm.moving_mean), to_array(norm.moving_variance)


def _write(norm: Any, mean: Any, variance: Any) -> None:
    norm.moving_mean.assign(mean)
    norm.moving_variance.assign(variance)


def _renewal(path: str, norm: Any, other: Any) -> Renewal:
    write = lambda *statistics: _write(norm, *statistics)  # noqa: E731
    if other is None:
        return Renewal(path, write)
    mean, variance = (x.astype("float64") for x in _statistics(other))
    return Renewal(path, write, (mean, variance, other.epsilon))


def _hook(norm: Any, path: str, see: Callable[[Any], None]) -> Any:
    """Show a norm's inputs to a function, and return the handle to remove it by."""

    def show(args: Any, kwargs: dict[str, Any]) -> None:
        given = inspect.signature(norm.call).bind(*args, **kwargs).arguments
        see(_rows(norm, path, next(iter(given.values())), given.get("mask")))

    return PreHook(show).add_to(norm)


def _rows(norm: Any, path: str, inputs: Any, mask: Any) -> Any:
    """Return the values of each channel that count."""
    if is_tracing() or type(inputs).__name__.endswith("Tracer"):
        raise UnsupportedModelError(
            f"recalibrate(): layer {path!r} runs inside a compiled function or a loop, where what it is "
            "given cannot be seen; let forward call model(inputs, training=False). Batch norms in "
            "recurrent cells and TimeDistributed cannot be recalibrated."
        )
    values = np.moveaxis(to_array(inputs).astype("float64"), norm.axis, 0)
    rows = values.reshape(len(values), -1)
    return rows if mask is None else rows[:, to_array(mask).astype(bool).ravel()]
