"""From a choice to a network: prune, recover, cut and quantize a copy; write it as a file."""

from __future__ import annotations

import inspect
import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lilliput.errors import AlgorithmError, ConfigError, UnsupportedModelError, nearest
from lilliput.export.targets.table import TARGETS
from lilliput.export.targets.target import Target
from lilliput.extras import require
from lilliput.frameworks import backend_of, part_of
from lilliput.measure.timing import run_evaluation
from lilliput.progress import quiet
from lilliput.registry import pruners, quantizers
from lilliput.search.journal import Journal
from lilliput.search.origin import digests_of_files
from lilliput.search.space import Space

RECOVERIES = ("auto", "reconstruct", "recalibrate", "none")
_RUNTIMES = {target.runtime: target for target in TARGETS.values()}
# The latency is that of the example inputs, and every file that is kept is checked.
_SET_BY_SEARCH = ("check", "dynamic_batch", "dynamic_shapes", "target")
log = logging.getLogger("lilliput")


@dataclass(frozen=True, eq=False)
class Candidate:
    """The network of a choice.

    Parameters
    ----------
    model : object
        The network, cut and with its quantizer attached.
    compressor : object
        The object to export: the quantizer, or the model if nothing is quantized.
    """

    model: Any
    compressor: Any


@dataclass(frozen=True, eq=False)
class Order:
    """Everything needed to create one network, so that another process can do it as well.

    Parameters
    ----------
    model : object
        The original, which is copied.
    pruning, quantization : list of dict
        Config lists, empty if there is nothing to do.
    data : sequence
        Batches for recovery and calibration.
    example_inputs : object
        Inputs of the model.
    pruner, quantizer : str
        Names of the algorithms.
    recover : str
        ``"reconstruct"``, ``"recalibrate"`` or ``"none"``.
    options : mapping
        Keyword arguments of the quantizer.
    """

    model: Any
    pruning: list[dict[str, Any]]
    quantization: list[dict[str, Any]]
    data: Sequence[Any]
    example_inputs: Any
    pruner: str
    quantizer: str
    recover: str
    options: Mapping[str, Any]

    def make(self) -> Candidate:
        """Return the network."""
        return self.quantized(self.cut())

    def cut(self) -> Any:
        """Return a copy of the model without the pruned channels, in floating point."""
        model = backend_of(self.model).copy_model(self.model)
        if not self.pruning:
            return model
        from lilliput.recovery.recalibrate import recalibrate
        from lilliput.recovery.reconstruct import reconstruct
        from lilliput.speedup.shrink import speedup

        inputs, algorithm = self.example_inputs, pruners.get(self.pruner)
        with quiet():
            model = algorithm(model, self.pruning, example_inputs=inputs).compress()
            if self.recover == "reconstruct":
                reconstruct(model, self.data, self.model, progress=False)
            elif self.recover == "recalibrate":
                recalibrate(model, self.data, original=self.model)
            return speedup(model, inputs).model

    def quantized(self, model: Any) -> Candidate:
        """Quantize a network in place."""
        if not self.quantization:
            return Candidate(model, model)
        inputs, algorithm = self.example_inputs, quantizers.get(self.quantizer)
        with quiet():
            quantizer = algorithm(model, self.quantization, example_inputs=inputs, **self.options)
            model = quantizer.compress()
            quantizer.calibrate(self.data, progress=False)
        return Candidate(model, quantizer)


class Maker:
    """Create networks for choices; the original is never changed.

    Parameters
    ----------
    space : Space
        The possible choices.
    data, recover, options
        See :class:`Order`; ``"auto"`` is the first of reconstruct, recalibrate and nothing that works on
        the model.
    target : Target
        The kind of file that is written.
    export_options : mapping, optional
        Keyword arguments of the exporter.
    """

    def __init__(
        self,
        space: Space,
        data: Sequence[Any],
        recover: str,
        options: Mapping[str, Any],
        target: Target,
        export_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.space, self.data, self.recover = space, data, recover
        self.options, self.target = dict(options), target
        self.export_options = dict(export_options or {})

    def order(self, choice: Sequence[int]) -> Order:
        """Return the order for the network of a choice."""
        order = self._order(choice)
        if order.pruning and self.recover == "auto":
            self.recover = self._way_back(order)
            order = self._order(choice)
        return order

    def _way_back(self, order: Order) -> str:
        """Return how networks are recovered: refitted to the original, if possible."""
        reasons = []
        for way in ("reconstruct", "recalibrate"):
            try:
                replace(order, recover=way).cut()
            except (UnsupportedModelError, AlgorithmError) as error:
                reasons.append(str(error))
            else:
                return way
        log.warning("accuracy lost to pruning is not recovered without training: %s", reasons[-1])
        return "none"

    def _order(self, choice: Sequence[int]) -> Order:
        space = self.space
        return Order(
            space.model,
            space.pruning(choice),
            space.quantization(choice),
            self.data,
            space.example_inputs,
            space.pruner,
            space.quantizer,
            self.recover,
            self.options,
        )

    def draft(self, choice: Sequence[int]) -> Candidate:
        """Return a network with the shape and the bits of a choice, without recovery."""
        order = self._order(choice)
        return replace(order, data=self.data[:1], recover="none", options={}).make()

    def write(self, candidate: Candidate | None, path: Path, check: bool = False) -> Any:
        """Write a candidate, or the original for None, as a file; return the ExportResult."""
        what = self.space.model if candidate is None else candidate.compressor
        write = self.target.writer(self.space.backend.name).load()
        options: dict[str, Any] = {"check": check}
        if "dynamic_shapes" in inspect.signature(write).parameters:
            options["dynamic_shapes"] = False
        if candidate is not None:
            options |= self.export_options
        with quiet():
            return write(what, path, self.space.example_inputs, **options)

    def write_original(self, folder: Path, journal: Journal) -> Path:
        """Return the file of the original, written again unless it is the one in the journal."""
        path = folder / f"original{self.target.suffix}"
        held = journal.get("original files")
        if not held or not held.items() <= digests_of_files(folder, path.stem).items():
            self.write(None, path)
            journal.note("original files", digests_of_files(folder, path.stem))
        return path

    def bytes_of(self, candidate: Candidate | None) -> int:
        """Return the size of the file of a candidate, or of the original for None."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"network{self.target.suffix}")
            return int(self.write(candidate, path).bytes)


def check_export_options(options: Mapping[str, Any], target: Target) -> None:
    """Raise a ConfigError if files of a target do not have an option, or the search sets it."""
    known = [name for name in target.options if name not in _SET_BY_SEARCH]
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(
            f"export_options: received {', '.join(map(repr, unknown))}, expected options of "
            f"{target.name} files that the search does not set itself: {', '.join(known)}."
        )


def target_of(name: Any, framework: str) -> Target:
    """Return the target of a runtime, whose packages must be installed."""
    known = {**_RUNTIMES, **TARGETS}
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"target: received {name!r}, expected {', '.join(_RUNTIMES)}.{nearest(name, known)}"
        )
    writer = known[name].writer(framework)
    for module in writer.modules:
        require(module, f"target {name!r} needs pip install 'lilliput[{writer.extra}]'")
    return known[name]


def evaluated(evaluate: Callable[[Any], Any], model: Any, what: str) -> float:
    """Return the metric of a model or file, or raise with the name of what failed."""
    try:
        metric = run_evaluation(evaluate, model)
    except (ConfigError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise AlgorithmError(
            f"evaluate raised {type(error).__name__} on {what}: {error}"
        ) from error
    if not math.isfinite(metric):
        raise AlgorithmError(
            f"evaluate returned {metric} on {what}; expected a finite number (higher is better)."
        )
    return metric


def evaluated_model(evaluate: Callable[[Any], Any], model: Any, what: str) -> float:
    """Return the metric of a model in eval mode; changes of values and modes by the function are undone."""
    backend = backend_of(model)
    before = backend.remember(model)
    try:
        with part_of(backend.name, "snapshot").evaluating(model):
            return evaluated(evaluate, model, what)
    finally:
        before.restore()
