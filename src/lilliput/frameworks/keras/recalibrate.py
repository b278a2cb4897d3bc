"""The batch norms of a Keras model and their inputs; see ``recovery/recalibrate.py``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras import sidecar
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.instrument import PreHook
from lilliput.frameworks.keras.running import call as call
from lilliput.frameworks.keras.running import no_grad
from lilliput.frameworks.keras.scopes import has_value, sync
from lilliput.frameworks.keras.variables import to_array

NAMES_MAY_DIFFER = True  # Keras numbers the names of a second model


def norms_of(model: Any) -> dict[str, Any]:
    """Return each batch norm under its first path."""
    sync(model)
    found = {id(layer): (path, layer) for path, layer in reversed(layers_by_path(model).items())}
    norms = [x for x in found.values() if isinstance(x[1], keras.layers.BatchNormalization)]
    return dict(reversed(norms))


def quantizers_in(model: Any) -> list[Any]:
    """Return the wrappers of quantizers in a model."""
    return sidecar.quantizers_in(layers_by_path(model).values())


def statistics(norm: Any) -> tuple[Any, Any]:
    """Return copies of the moving statistics of a norm."""
    held = norm.moving_mean, norm.moving_variance
    mean, variance = (to_array(x).astype("float64") for x in held)
    return mean, variance


def write(norm: Any, mean: Any, variance: Any) -> None:
    """Set the statistics of a norm."""
    norm.moving_mean.assign(mean)
    norm.moving_variance.assign(variance)


def epsilon(norm: Any) -> float:
    """Return the epsilon that a norm adds to the variance."""
    return float(norm.epsilon)


def over_processes(total: Any, squares: Any, count: int) -> tuple[Any, Any, int]:
    """Return the sums: there is a single process."""
    return total, squares, count


@contextmanager
def watching(
    watched: Sequence[tuple[str, Any, Callable[[Any], None]]], models: Sequence[Any]
) -> Iterator[None]:
    """Pass norms' inputs, one row per channel, to functions."""
    hooks = [_hook(norm, path, see) for path, norm, see in watched]
    try:
        with no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _hook(norm: Any, path: str, see: Callable[[Any], None]) -> Any:
    """Pass a norm's inputs to a function, and return the handle to remove it."""

    def show(args: Any, kwargs: dict[str, Any]) -> None:
        given = inspect.signature(norm.call).bind(*args, **kwargs).arguments
        see(_rows(norm, path, next(iter(given.values())), given.get("mask")))

    return PreHook(show).add_to(norm)


def _rows(norm: Any, path: str, inputs: Any, mask: Any) -> Any:
    """Return the unmasked values of each channel."""
    if not has_value(inputs):
        raise UnsupportedModelError(
            f"recalibrate(): layer {path!r} runs inside a compiled function or a loop, where its inputs "
            "cannot be observed; let forward call model(inputs, training=False). Batch norms in "
            "recurrent cells and TimeDistributed cannot be recalibrated."
        )
    values = np.moveaxis(to_array(inputs).astype("float64"), norm.axis, 0)
    rows = values.reshape(len(values), -1)
    return rows if mask is None else rows[:, to_array(mask).astype(bool).ravel()]
