"""Measure a model or a written file: what it holds, what it costs, how long it takes here.

>>> import torch
>>> figures = measure(torch.nn.Linear(4, 2), torch.randn(8, 4), runs=3)
>>> figures.parameters, figures.macs, figures.bytes
(10, 8, 40)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from lilliput.errors import ConfigError
from lilliput.export.targets.executed import ExecutedFile, open_file
from lilliput.frameworks import backend_of
from lilliput.report.latency import readings_of
from lilliput.report.receipt import Figures

_WARM_UP = 3
_SECONDS = 2.0  # the most that timing one model may take, unless a few calls take longer
_FEWEST = 5


class Measured(Protocol):
    """How a framework's models are counted and called."""

    def counts(self, model: Any, inputs: Any) -> dict[str, Any]:
        """Return parameters, nonzeros, macs and bytes."""

    def caller(self, model: Any, inputs: Any) -> Callable[[], Any]:
        """Return a function that runs the model once on the inputs, in evaluation mode."""

    def runtime(self) -> str:
        """Return the name of the framework and its threads."""

    def batch(self, model: Any, inputs: Any) -> int:
        """Return how many examples the inputs hold."""


def measure(
    model_or_path: Any,
    inputs: Any,
    *,
    evaluate: Callable[[Any], float] | None = None,
    name: str = "",
    runs: int = 50,
    compact: bool = False,
) -> Figures:
    """Count what a model or file holds, and time it.

    Parameters
    ----------
    model_or_path : torch.nn.Module, keras.Model, str or path-like
        A model, compressed or not, or a file that ends in ``.onnx`` or ``.tflite``.
    inputs : tensor, tuple or dict
        What the model is called with.
    evaluate : callable, optional
        ``evaluate(model)`` returns the metric, higher being better. A file is given to it as something
        that is called like the model.
    name : str
        What it is called in a receipt.
    runs : int
        How many calls are timed at most; 0 for none.
    compact : bool
        Whether to find out how small ``save(model, path, compact=True)`` would make the weights.
    """
    found = measure_all([model_or_path], inputs, evaluate=evaluate, names=[name], runs=runs)[0]
    if not compact or isinstance(model_or_path, (str, os.PathLike)):
        return found
    from lilliput.compact.saving import to_bytes

    return replace(found, coded=len(to_bytes(model_or_path, compact=True)))


def measure_all(
    models: Sequence[Any],
    inputs: Any,
    *,
    evaluate: Callable[[Any], float] | None = None,
    names: Sequence[str] = (),
    runs: int = 50,
) -> list[Figures]:
    """Measure several models or files; their calls take turns, so that all meet the same machine."""
    opened = [open_file(x) if isinstance(x, (str, os.PathLike)) else x for x in models]
    kinds = [how_to_measure(x) for x in opened]
    calls = [kind.caller(x, inputs) for kind, x in zip(kinds, opened, strict=True)]
    times = time_calls(calls, runs)
    found = []
    for i, (model, kind) in enumerate(zip(opened, kinds, strict=True)):
        fallback = model.path.name if isinstance(model, ExecutedFile) else type(model).__name__
        title = (names[i] if names else "") or fallback
        runtime = f"{kind.runtime()}, batch {kind.batch(model, inputs)}"
        figures = figures_of(title, runtime, kind.counts(model, inputs), times[i])
        if evaluate is not None:
            figures = replace(figures, metric=run_evaluation(evaluate, model))
        found.append(figures)
    return found


def figures_of(
    name: str, runtime: str, counts: Mapping[str, Any], times: Sequence[float]
) -> Figures:
    """Return counts and timings together."""
    p50, p95 = (float(x) for x in np.percentile(times, (50, 95))) if times else (None, None)
    return Figures(
        *(name, runtime), **counts, p50=p50, p95=p95, runs=len(times), readings=readings_of(times)
    )


def run_evaluation(evaluate: Callable[[Any], float], model: Any) -> float:
    """Return the metric as a float, or say what the function gave instead."""
    value = evaluate(model)
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"evaluate(model) returned {type(value).__name__}, expected one number, higher being better."
        ) from error


def time_calls(
    calls: Sequence[Callable[[], Any]], runs: int, seconds: float = _SECONDS
) -> list[list[float]]:
    """Return milliseconds of each call; the calls take turns.

    It ends after ``seconds`` per call, but not before a few were made.

    Examples
    --------
    >>> [len(times) for times in time_calls([lambda: 1, lambda: 2], runs=4)]
    [4, 4]
    """
    times: list[list[float]] = [[] for _ in calls]
    if runs < 1:
        return times
    for call in calls:
        for _ in range(_WARM_UP):
            call()
    end = time.perf_counter() + seconds * len(calls)
    for done in range(runs):
        if done >= _FEWEST and time.perf_counter() > end:
            break
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            own.append((time.perf_counter() - start) * 1000)
    return times


def how_to_measure(model: Any) -> Measured:
    """Return how a model or an opened file is counted and called."""
    if isinstance(model, ExecutedFile):
        found: Measured = import_module("lilliput.report.measure_file").MeasuredFile(model)
    else:
        framework = backend_of(model).name
        found = import_module(f"lilliput.frameworks.{framework}.measure").measured
    return found
