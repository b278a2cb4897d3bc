"""Calibration: run batches in float, observe every activation, fix the ranges."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lilliput.config.layer import QuantType
from lilliput.errors import AlgorithmError, ConfigError, StateError
from lilliput.files import write_atomically
from lilliput.frameworks.wrapping import marking
from lilliput.ops.namespace import namespace
from lilliput.progress import track
from lilliput.quantization.observers import Observer, make_observer

_SAVE_EVERY = 5.0  # seconds between two checkpoints
_KEPT = 4  # calls of the model that are kept for later steps
Key = tuple[str, str]


def calibrate(
    quantizer: Any,
    batches: Iterable[Any],
    forward: Callable[..., Any] | None,
    checkpoint: Any,
    progress: bool,
) -> None:
    """Run batches through a quantizer's model, and fix the ranges of its activations."""
    observers = {
        (wrapper.name, target): make_observer(quantizer.observer_of(wrapper, target))
        for wrapper in quantizer.get_modules_wrapper()
        for target in ("input", "output")
        if target in wrapper.roles and not quantizer.grid(wrapper, target).is_dynamic
    }
    if not isinstance(batches, Iterable) or quantizer._is_tensor(batches):
        raise ConfigError(
            f"calibrate() received {type(batches).__name__}, expected a data loader or a list of batches."
        )
    note = _Checkpoint(checkpoint, observers, quantizer)
    done = note.load()
    source = _Batches(quantizer, forward, done)
    for count in source.run(track(batches, "calibrating", progress), observers):
        _check_finite(observers, count)
        note.save(count)
    if not source.count:
        raise ConfigError(
            "calibrate() received no batches: the loader is empty, or an exhausted iterator."
        )
    if source.count < done:
        raise StateError(
            f"{checkpoint}: {done} batches were processed before, but there are {source.count} now; remove "
            "the file to start over."
        )
    _fix_ranges(quantizer, observers)
    quantizer.sample_inputs = tuple(source.kept)
    note.remove()


class _Batches:
    """Runs batches one by one, skipping those that an earlier run has seen.

    The first of them run again, so that the same model inputs are kept as in an uninterrupted run.
    """

    def __init__(self, quantizer: Any, forward: Callable[..., Any] | None, done: int) -> None:
        self.quantizer, self.forward, self.done = quantizer, forward, done
        self.count = 0
        self.kept: list[Any] = []
        self.is_running = False

    def run(self, batches: Iterable[Any], observers: dict[Key, Observer]) -> Iterator[int]:
        backend, model = self.quantizer._backend, self.quantizer.bound_model
        handle = backend.on_call(model, self.keep)
        try:
            yield from self._run(backend, model, batches, observers)
        finally:
            handle.remove()

    def keep(self, args: Any, kwargs: Any) -> None:
        """Record the inputs of the model, for later steps."""
        if len(self.kept) < _KEPT and self.is_running:
            self.kept.append((args, kwargs))

    def _run(
        self, backend: Any, model: Any, batches: Iterable[Any], observers: dict[Key, Observer]
    ) -> Iterator[int]:
        def observe(wrapper: Any, quant_type: QuantType, tensors: tuple[Any, ...]) -> Any:
            observer = observers.get((wrapper.name, quant_type.value))
            if observer is not None and self.count > self.done:
                for tensor in tensors:
                    if namespace(tensor).size(tensor):  # a batch without samples has no range
                        observer.observe(namespace(tensor).detach(tensor))
            return tensors

        for batch in batches:
            if self.count == 0:
                self.quantizer._place_by(batch, self.forward)
            self.count += 1
            if self.count > self.done or len(self.kept) < _KEPT:
                self.is_running = True
                with marking(observe, self.quantizer.get_modules_wrapper()):
                    backend.run(model, [batch], self.forward)
                self.is_running = False
            if self.count > self.done:
                yield self.count


class _Checkpoint:
    """The observers' statistics so far, in a file that is replaced atomically."""

    def __init__(self, path: Any, observers: dict[Key, Observer], quantizer: Any) -> None:
        rank = quantizer._backend.process_index()
        self.path = None if path is None else Path(f"{path}.{rank}" if rank else path)
        self.observers = observers
        self.saved_at = time.monotonic()
        self.title = {
            f"{name} {target}": type(o).__name__ for (name, target), o in observers.items()
        }
        for wrapper in quantizer.get_modules_wrapper() if path is not None else ():
            if wrapper.weight is not None:  # a fingerprint: the same layers with the same weights
                weight = namespace(wrapper.weight).detach(wrapper.weight)
                self.title[wrapper.name] = repr(float(namespace(weight).mean(abs(weight))))

    def load(self) -> int:
        """Load the statistics of an earlier run; return its number of batches."""
        if self.path is None or not self.path.exists():
            return 0
        try:
            content = json.loads(self.path.read_text())
            if content["observers"] != self.title:
                raise StateError(
                    f"{self.path}: this calibration was started with different layers, weights or observers; "
                    "remove the file to start over."
                )
            for key, observer in self.observers.items():
                observer.load(content["seen"]["/".join(key)])
            return int(content["batches"])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"{self.path}: not a calibration file ({error!r}).") from error

    def save(self, count: int) -> None:
        """Write the statistics if the last checkpoint is old enough."""
        if self.path is None or time.monotonic() - self.saved_at <= _SAVE_EVERY:
            return
        seen = {"/".join(key): observer.state() for key, observer in self.observers.items()}
        content = {"observers": self.title, "batches": count, "seen": seen}
        write_atomically(self.path, json.dumps(content).encode())
        self.saved_at = time.monotonic()

    def remove(self) -> None:
        """Remove the file: calibration is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _check_finite(observers: dict[Key, Observer], count: int) -> None:
    for (name, target), observer in observers.items():
        if not observer.is_finite():
            raise AlgorithmError(
                f"calibration batch {count}: the {target} of layer {name!r} holds NaN or infinity; check the "
                "data and the float model first. The calibration was discarded."
            )


def _fix_ranges(quantizer: Any, observers: dict[Key, Observer]) -> None:
    wrappers = {wrapper.name: wrapper for wrapper in quantizer.get_modules_wrapper()}
    ranges = {}
    for (name, target), observer in observers.items():
        observer.merge(quantizer._backend.reduce)
        if quantizer._who_quantizes(wrappers[name], target) == (wrappers[name], target):
            if observer.is_empty():
                raise AlgorithmError(
                    f"no data was collected from the {target} of layer {name!r}: no batch reached it; "
                    "exclude it."
                )
            ranges[name, target] = observer.range(quantizer.grid(wrappers[name], target))
    for (name, target), (low, high) in ranges.items():
        quantizer.set_range(wrappers[name], target, low, high)
