"""From a choice to a network: prune, recover, cut, quantize a copy; write it as a file."""

from __future__ import annotations

import copy
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.errors import AlgorithmError, ConfigError, nearest
from lilliput.export.targets.table import TARGETS
from lilliput.export.targets.target import Target
from lilliput.extras import require
from lilliput.frameworks.work import default_threads
from lilliput.registry import pruners, quantizers
from lilliput.report.measure import run_evaluation
from lilliput.search.space import Space

RECOVERIES = ("reconstruct", "recalibrate", "none")
_RUNTIMES = {target.runtime: target for target in TARGETS.values()}
log = logging.getLogger("lilliput")


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network that a choice has led to.

    Parameters
    ----------
    model : object
        The network, cut and with its quantizer at work.
    compressor : object
        What is written as a file: the quantizer, or the model where nothing is quantized.
    """

    model: Any
    compressor: Any


class Maker:
    """Make networks for choices; the original is never changed.

    Parameters
    ----------
    space : Space
        What can be chosen.
    data : sequence
        Batches for recovery and calibration.
    recover : str
        ``"reconstruct"``, ``"recalibrate"`` or ``"none"``: what gives back, without training, what
        pruning took.
    options : mapping
        Keyword arguments of the quantizer.
    target : Target
        The kind of file that is written.
    """

    def __init__(
        self,
        space: Space,
        data: Sequence[Any],
        recover: str,
        options: Mapping[str, Any],
        target: Target,
    ) -> None:
        self.space, self.data, self.recover = space, data, recover
        self.options, self.target = dict(options), target

    def make(self, choice: Sequence[int], is_draft: bool = False) -> Candidate:
        """Return the network of a choice; a draft has its shape and bits, and nothing recovered."""
        return self.quantized(self.cut(choice, is_draft), choice, is_draft)

    def cut(self, choice: Sequence[int], is_draft: bool = False) -> Any:
        """Return a copy of the model with the channels of a choice removed, in floating point."""
        rules, inputs = self.space.pruning(choice), self.space.example_inputs
        model = copy.deepcopy(self.space.model)
        if not rules:
            return model
        from lilliput.recovery.recalibrate import recalibrate
        from lilliput.recovery.reconstruct import reconstruct
        from lilliput.speedup.shrink import speedup

        with quiet():
            model = pruners.get(self.space.pruner)(model, rules, example_inputs=inputs).compress()
            if self.recover == "reconstruct" and not is_draft:
                reconstruct(model, self.data, self.space.model, progress=False)
            elif self.recover == "recalibrate" and not is_draft:
                recalibrate(model, self.data, original=self.space.model)
            return speedup(model, inputs).model

    def quantized(self, model: Any, choice: Sequence[int], is_draft: bool = False) -> Candidate:
        """Quantize a network in place as a choice says."""
        rules = self.space.quantization(choice)
        if not rules:
            return Candidate(model, model)
        options: dict[str, Any] = {} if is_draft else self.options
        with quiet():
            algorithm = quantizers.get(self.space.quantizer)
            quantizer = algorithm(model, rules, example_inputs=self.space.example_inputs, **options)
            model = quantizer.compress()
            quantizer.calibrate(self.data[:1] if is_draft else self.data, progress=False)
        return Candidate(model, quantizer)

    def write(self, candidate: Candidate | None, path: Path, check: bool = False) -> Any:
        """Write a candidate as a file, or the original for None; return the ExportResult."""
        what = self.space.model if candidate is None else candidate.compressor
        write = self.target.writer(self.space.backend.name).load()
        options: dict[str, Any] = {"check": check}
        if "dynamic_shapes" in self.target.options:
            options["dynamic_shapes"] = False
        with quiet():
            return write(what, path, self.space.example_inputs, **options)

    def bytes_of(self, candidate: Candidate | None) -> int:
        """Return the size of the file of a candidate, or of the original for None."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"network{self.target.suffix}")
            return int(self.write(candidate, path).bytes)


def target_of(name: Any, framework: str) -> Target:
    """Return the target of a runtime, whose packages must be there."""
    known = {**_RUNTIMES, **TARGETS}
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"target: received {name!r}, expected {', '.join(_RUNTIMES)}.{nearest(name, known)}"
        )
    writer = known[name].writer(framework)
    for module in writer.modules:
        require(module, f"target {name!r} needs pip install 'lilliput[{writer.extra}]'")
    return known[name]


def threads() -> int:
    """Return how many threads files are executed with."""
    return default_threads()


def evaluated(evaluate: Callable[[Any], Any], model: Any, what: str) -> float:
    """Return the metric of a model or file, or say on what the function failed."""
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
            f"evaluate returned {metric} on {what}; expected a finite number, higher being better."
        )
    return metric


@contextmanager
def quiet() -> Iterator[None]:
    """Keep notes of single steps back: a search takes hundreds of them."""

    def is_grave(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    log.addFilter(is_grave)
    try:
        yield
    finally:
        log.removeFilter(is_grave)
