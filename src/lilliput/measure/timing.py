"""Count the parameters of models and files and time their calls alternately."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lilliput.errors import ConfigError
from lilliput.frameworks import part_for
from lilliput.measure.latency import readings_of
from lilliput.measure.receipt import Figures

_WARM_UP = 3
_SECONDS = 2.0  # limit for timing one model, unless a few calls take longer
_FEWEST = 5
_SINGLE = ", 1 thread"


class Measured(Protocol):
    """How a framework's models are counted and called."""

    def counts(self, model: Any, inputs: Any) -> dict[str, Any]:
        """Return parameters, nonzeros, macs and bytes."""

    def caller(self, model: Any, inputs: Any) -> Callable[[], Any]:
        """Return a function that runs the model once on the inputs, in evaluation mode."""

    def runtime(self) -> str:
        """Return the name of the framework and its threads."""

    def batch(self, model: Any, inputs: Any) -> int:
        """Return the number of examples in the inputs."""


class MeasuredModel(Measured, Protocol):
    """Further functions for the models of a framework, in its module ``measure``."""

    def stored(self, model: Any) -> dict[str, int]:
        """Return parameters, nonzeros and bytes."""

    def untouched(self, model: Any) -> Any:
        """Return a model that can be run without affecting the original, whose code may count its calls."""

    def fresh(self, inputs: Any) -> Any:
        """Return inputs that code may write to."""


def how_to_measure_model(model: Any) -> MeasuredModel:
    """Return how a model is counted and called."""
    found: MeasuredModel = part_for(model, "measure").measured
    return found


def measure_opened(
    models: Sequence[tuple[Any, Measured]], inputs: Any, names: Sequence[str], runs: int = 50
) -> list[Figures]:
    """Measure models and opened files, each with its counting and calling functions."""
    calls = [how.caller(model, inputs) for model, how in models]
    times = time_calls(calls, runs)
    is_single = all(_SINGLE in how.runtime() for _, how in models)
    busy: list[list[float]] | None = None
    if is_single:  # warm already
        busy = time_calls(calls, runs and _FEWEST, warm_up=0, clock=time.process_time)
    return [
        figures_of(
            names[i],
            f"{how.runtime()}, batch {how.batch(model, inputs)}",
            how.counts(model, inputs),
            times[i],
            () if busy is None else busy[i],
        )
        for i, (model, how) in enumerate(models)
    ]


def figures_of(
    name: str,
    runtime: str,
    counts: Mapping[str, Any],
    times: Sequence[float],
    busy: Sequence[float] = (),
) -> Figures:
    """Return counts and timings together.

    ``busy`` are CPU times of the same calls on one thread, used as a further reading: on a busy machine,
    all wall-clock readings are slower, but not that one.
    """
    p50, p95 = (float(x) for x in np.percentile(times, (50, 95))) if times else (None, None)
    readings = readings_of(times)
    if busy and readings:
        readings = (*readings, float(np.median(busy)))
    return Figures(*(name, runtime), **counts, p50=p50, p95=p95, runs=len(times), readings=readings)


def run_evaluation(evaluate: Callable[[Any], float], model: Any) -> float:
    """Return the metric as a float, or raise with what the function returned instead."""
    value = evaluate(model)
    kind = type(value).__name__
    if str(getattr(value, "dtype", "")).endswith("bool") and not kind.startswith("bool"):
        kind = f"{kind} of bool"
    try:
        # Python converts strings and booleans to numbers, which are mistakes of the function.
        if isinstance(value, (str, bytes, bytearray)) or kind.endswith(("bool", "bool_")):
            raise TypeError(kind)
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"evaluate(model) returned {kind}, expected one number (higher is better)."
        ) from error


def time_calls(
    calls: Sequence[Callable[[], Any]],
    runs: int,
    seconds: float = _SECONDS,
    warm_up: int = _WARM_UP,
    clock: Callable[[], float] = time.perf_counter,
    fewest: int = _FEWEST,
) -> list[list[float]]:
    """Return the milliseconds of each call; the calls are timed alternately.

    It ends after ``seconds`` per call, but not before the ``fewest`` were made. The clock may be one that
    stands still while other processes run, such as ``time.thread_time``.

    Examples
    --------
    >>> [len(times) for times in time_calls([lambda: 1, lambda: 2], runs=4)]
    [4, 4]
    """
    times: list[list[float]] = [[] for _ in calls]
    if runs < 1:
        return times
    for call in calls:
        for _ in range(warm_up):
            call()
    end = time.perf_counter() + seconds * len(calls)
    for done in range(runs):
        if done >= fewest and time.perf_counter() > end:
            break
        for call, own in zip(calls, times, strict=True):
            start = clock()
            call()
            own.append((clock() - start) * 1000)
    return times
