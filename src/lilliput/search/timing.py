"""Time networks against their original, whole and layer by layer, and fill the latency table."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.export.targets.executed import open_file
from lilliput.export.targets.target import Target
from lilliput.frameworks.work import default_threads
from lilliput.measure.timing import time_calls
from lilliput.report.environment import environment
from lilliput.report.measure import how_to_measure
from lilliput.search.candidate import Candidate, Maker
from lilliput.search.costs import Counts, expand, merged
from lilliput.search.latency import LatencyTable, Network, Shape, TimedLayer, Times, bordering
from lilliput.search.solve import Choice, Term
from lilliput.store import digest_of

log = logging.getLogger("lilliput")

_OPENED = 3  # times: the position of weights in memory changes the speed by a few percent
_RUNS = 14  # of the whole network and of the original, alternately, each time
_SECONDS = 0.5  # for each
_PROFILED = 15
_TRIED = 24  # random networks of which the most informative one is timed


class Clock:
    """Times the networks of one search.

    Parameters
    ----------
    maker : Maker
        Creates and writes them.
    counts : Counts
        The shapes that result from choices.
    original : Path
        The original's file.
    tables : Path
        The folder of latency tables.
    """

    def __init__(self, maker: Maker, counts: Counts, original: Path, tables: Path) -> None:
        self.maker, self.counts, self.space = maker, counts, maker.space
        self.original = original
        self.file: Any = open_file(self.original)
        cpu = str(environment()["cpu"])
        self.table = LatencyTable.open(tables, self.file.runtime, cpu, default_threads())
        self.inputs = self.space.example_inputs
        self.id = architecture_of(original)

    @property
    def times(self) -> Times:
        """The table's entries for this model."""
        return self.table.times(self.id)

    @property
    def milliseconds(self) -> float:
        """The latency of the original, timed on first use."""
        if self.id not in self.table.document.models:
            self.table.begin(self.id, self.compare(self.original)[1])
            self.table.save()
        return self.table.document.models[self.id].milliseconds

    def terms(self) -> list[Term]:
        """Return the estimated latency of choices relative to the original."""
        times = self.times
        terms = [Term((), np.array(times.overhead))]
        for name, layer in self.layers.items():
            decisions = [d for d in self.counts.touching.get(layer, ()) if self.space.removed[d]]

            def share(chosen: dict[int, int], kind: str, name: str = name) -> float:
                return times.factor * times.layer(name, self.shape(name, chosen), kind)

            kinds = self.kinds(name)
            by_kind = {
                kind: merged(
                    expand(decisions, self.space.sizes, lambda c, k=kind: share(c, k))  # type: ignore[misc]
                )
                for kind in {x for own in kinds for x in self.bordered(name, own)}
            }
            after, rows = self.following.get(name), []
            for own in kinds:
                cells = [by_kind[kind] for kind in self.bordered(name, own)]
                rows.append(_stacked(cells, None if after is None else self._decision(after)))
            terms += _stacked(rows, self._decision(name))
        return merged(terms)

    @property
    def layers(self) -> dict[str, str]:
        """The layers with a weight that is executed, each with the name of the weight."""
        axes = self.counts.analysis.axes
        return {
            name: layer.tensor_name
            for name, layer in self.space.layers.items()
            if layer.tensor_name in axes and len(layer.shape) > 1
        }

    def kinds(self, layer: str) -> list[str]:
        """Return the arithmetic in which a layer is executed, for each choice of its bits."""
        number = self.space.bits_decision(layer)
        if number is None:
            return ["float"]
        group = self.space.settings["quant_bits"][layer].get("group_size")
        return [kind_of(x, group) for x in self.space.decisions[number].choices]

    @cached_property
    def following(self) -> dict[str, str]:
        """The layer that is executed after each layer, in the order of the graph."""
        owners = {weight: name for name, weight in self.layers.items()}
        read = [
            x.parameter.name
            for op in self.counts.analysis.graph.ops
            for x in op.tensors
            if x.parameter
        ]
        order = list(dict.fromkeys(owners[name] for name in read if name in owners))
        return dict(pairwise(order))

    def bordered(self, layer: str, kind: str) -> list[str]:
        """Return a kind of a layer as executed, for each choice of the next layer's bits."""
        after = self.following.get(layer)
        return [kind] if after is None else [bordering(kind, x) for x in self.kinds(after)]

    def _decision(self, layer: str) -> int | None:
        """Return the decision on a layer's bits, or None if its arithmetic is the same for all choices."""
        return self.space.bits_decision(layer) if len(set(self.kinds(layer))) > 1 else None

    def shape(self, layer: str, chosen: dict[int, int]) -> Shape:
        """Return the shape of a layer's weight, given some decisions, its output channels first."""
        info = self.space.layers[layer]
        sizes = list(self.counts.shape(info.tensor_name, chosen))
        return (sizes.pop(info.out_axis), *sizes)

    def describe(self, choice: Sequence[int]) -> dict[str, tuple[Shape, str]]:
        """Return the shape of each layer's weight and its kind of arithmetic."""
        found = {}
        for name, tensor in self.layers.items():
            touching = {d: choice[d] for d in self.counts.touching.get(tensor, ())}
            kind, after = self._kind(name, choice), self.following.get(name)
            kind = kind if after is None else bordering(kind, self._kind(after, choice))
            found[name] = (self.shape(name, touching), kind)
        return found

    def _kind(self, layer: str, choice: Sequence[int]) -> str:
        number = self.space.bits_decision(layer)
        return self.kinds(layer)[0 if number is None else choice[number]]

    def fill(
        self, networks: int, seed: int = 0, before_each: Callable[[], None] = lambda: None
    ) -> None:
        """Time networks up to this number, each chosen to show layers at new shapes."""
        rng = np.random.default_rng(seed)
        for done in range(networks):
            choice = self._next(done, rng)
            if done < len(self.times.networks):
                continue  # an earlier run has timed it; the random numbers stay the same
            before_each()
            log.info("timing network %d of %d for the latency table", done + 1, networks)
            self.measure(choice, self.maker.draft(choice))

    def _next(self, done: int, rng: np.random.Generator) -> Choice:
        """Return the mildest choice, then the most aggressive one, then the most informative random ones."""
        sizes = self.space.sizes
        if done < 2:
            return tuple(0 if done == 0 else n - 1 for n in sizes)
        tried = [tuple(int(rng.integers(n)) for n in sizes) for _ in range(_TRIED)]
        known = {
            (name, tuple(layer.shape), layer.kind)
            for network in self.times.networks[:done]
            for name, layer in network.layers.items()
        }

        def shows(choice: Choice) -> int:
            found = self.describe(choice).items()
            return sum((name, *layer) not in known for name, layer in found)

        return max(tried, key=shows)

    def measure(self, choice: Sequence[int], candidate: Candidate) -> tuple[float, int]:
        """Return the latency of a network relative to the original, and the bytes of its file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"network{self.maker.target.suffix}")
            result = self.maker.write(candidate, path)
            ratio, milliseconds = self.compare(path)
            self._add(choice, path, ratio, milliseconds)
        return ratio, int(result.bytes)

    def compare(self, path: Path) -> tuple[float, float]:
        """Return the latency of a file relative to the original, timed alternately, and in milliseconds.

        With one thread it is the CPU time of that thread, which other processes on the machine do not affect.
        """
        clock = time.thread_time if self.file.threads == 1 else time.perf_counter
        found = []
        for _ in range(_OPENED):
            files = [open_file(self.original), open_file(path)]
            calls = [how_to_measure(x).caller(x, self.inputs) for x in files]
            times = time_calls(calls, _RUNS, _SECONDS, clock=clock)
            one, two = (float(np.median(x)) for x in times)
            found.append((two / one, one))
        ratio, milliseconds = np.median(found, axis=0)
        return float(ratio), float(milliseconds)

    def _add(self, choice: Sequence[int], path: Path, ratio: float, milliseconds: float) -> None:
        """Record the time of each layer."""
        from lilliput.export.profile import Profile

        profiles = [Profile(x, default_threads()) for x in (self.original, path)]
        arrays = _arrays(self.inputs)
        for _ in range(_PROFILED):
            for profile in profiles:
                profile.run(arrays)
        before, after = (profile.finish() for profile in profiles)
        whole = sum(before.values())
        described = self.describe(choice)
        layers = {
            name: TimedLayer(
                shape=list(described[name][0]), kind=described[name][1], share=taken / whole
            )
            for name, taken in after.items()
            if name in described
        }
        if not any(layer.share > 0 for layer in layers.values()):
            raise AlgorithmError(
                "budget: latency: the runtime's profile contains none of the model's layers; limit macs or "
                "bytes instead."
            )
        self.table.add(
            self.id, milliseconds, Network(choice=list(choice), layers=layers, ratio=ratio)
        )


def architecture_of(path: Path) -> str:
    """Return a hash of everything that determines the latency of an ONNX file: all but the trained values.

    Only names of layers count, which the table uses; other names depend on how a file was created.
    """
    import onnx

    from lilliput.export.passes.graph import LAYERS

    graph = onnx.load(path, load_external_data=False).graph
    numbers: dict[str, int] = {}

    def numbered(names: Iterable[str]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) for name in names]

    described: list[Any] = [
        [node.op_type, node.name if node.op_type in LAYERS else ""]
        + [numbered(node.input), numbered(node.output)]
        + [x.SerializeToString(deterministic=True) for x in node.attribute]
        for node in graph.node
    ]
    for tensor in graph.initializer:
        described.append([numbered([tensor.name]), list(tensor.dims), tensor.data_type])
        if tensor.data_type == onnx.TensorProto.INT64:  # settings, such as shapes and axes
            tensor.ClearField("name")
            described.append(tensor.SerializeToString(deterministic=True))
    described += [x.type.SerializeToString(deterministic=True) for x in graph.input]
    return digest_of(repr(described).encode())[:16]


def check_clock(target: Target) -> None:
    """Raise for a runtime whose layers cannot be timed."""
    if target.runtime != "onnxruntime":
        raise ConfigError(
            f"budget: latency: {target.title} does not report the time of its layers; expected target "
            "'onnxruntime'."
        )


def kind_of(bits: Any, group_size: int | None = None) -> str:
    """Return the arithmetic in which ONNX Runtime executes a layer of this number of bits.

    Weights of fewer than eight bits are stored and multiplied as eight, unless they have scales per group.

    Examples
    --------
    >>> kind_of(None), kind_of(4), kind_of({"weight": 4, "input": 16}), kind_of(4, group_size=32)
    ('float', 'int8', 'int16', 'int4 in groups of 32')
    """
    if bits is None:
        return "float"
    most = max(bits.values()) if isinstance(bits, Mapping) else int(bits)
    if group_size is not None:
        own = bits.get("weight", 8) if isinstance(bits, Mapping) else bits
        return f"int{own} in groups of {group_size}"
    return "int8" if most <= 8 else "int16"


def _stacked(parts: Sequence[Sequence[Term]], number: int | None) -> list[Term]:
    """Return terms that depend on one more decision, if any, given those of each choice."""
    if number is None:
        return list(parts[0])
    keys = dict.fromkeys(term.decisions for part in parts for term in part)
    found = []
    for key in keys:
        tables = [next((t.values for t in part if t.decisions == key), None) for part in parts]
        shape = next(t.shape for t in tables if t is not None)
        filled = [np.zeros(shape) if t is None else t for t in tables]
        found.append(Term((*key, number), np.stack(filled, axis=-1)))
    return found


def _arrays(inputs: Any) -> list[Any]:
    given = inputs.values() if isinstance(inputs, Mapping) else inputs
    given = given if isinstance(inputs, (Mapping, tuple, list)) else [inputs]
    return [x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x) for x in given]
