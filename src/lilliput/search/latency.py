"""The latency table: the time of each layer at each width, measured inside real, cut networks.

One JSON file per runtime, version, processor and number of threads. For each model it contains the networks
that were timed: the share of the original's time that each layer took in them, the shape of its weight and
the kind of arithmetic, and the latency of the whole network relative to the original's. Original
and network are timed alternately, so that the load of the machine cancels.

An estimate is the sum over the layers of a config list: the measured time of a layer that was timed at that
shape, otherwise a fit over the shapes at which it was timed (constant, inputs, outputs, and their product).
Kernels work on blocks of channels, so time rises in steps: shapes are rounded up to the block size whose
fits best predict held-out points. A whole network takes a factor times that sum plus a fixed cost per call,
which is a large part of a small network. The error of an estimate is measured by leave-one-out: each timed
network is estimated from the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from lilliput.errors import StateError
from lilliput.files import write_atomically
from lilliput.store import Strict

Shape = tuple[int, ...]
Key = tuple[str, Shape, str]  # layer, shape of its weight, kind of arithmetic
_LEAST = 0.05  # of the smallest time of a layer: lower limit of a fit
_RIDGE = 1e-4
_FEWEST = 5  # points of a layer needed to determine a block
_BLOCKS = (1, 4, 8, 16, 32)  # channels that kernels may process at a time
_BETTER = 0.9  # of the error without blocks: a gain of less than a tenth may be noise
_BEFORE = " before "
_APART = 0.1  # of the largest network: the smallest difference that shows the constant per call


class TimedLayer(Strict):
    """One layer in a network."""

    shape: list[int]
    kind: str
    share: float = Field(ge=0, allow_inf_nan=False)


class Network(Strict):
    """A timed network: its layers, and its total time relative to the original."""

    choice: list[int]
    layers: dict[str, TimedLayer]
    ratio: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _takes_time(self) -> Network:
        if not self.kernels > 0:
            raise ValueError("a network whose layers take no time")
        return self

    @property
    def kernels(self) -> float:
        """The sum of the times of its layers."""
        return sum(layer.share for layer in self.layers.values())


class Model(Strict):
    """The networks of one model, and the milliseconds of the original."""

    milliseconds: float = Field(gt=0, allow_inf_nan=False)
    networks: list[Network] = Field(default_factory=list)


class Document(Strict):
    """The content of a table's file."""

    format: int = 1
    runtime: str
    cpu: str
    threads: int
    models: dict[str, Model] = Field(default_factory=dict)


@dataclass
class LatencyTable:
    """Measured times for one runtime on one processor.

    Parameters
    ----------
    path : Path
        The file.
    document : Document
        Its content.
    """

    path: Path
    document: Document

    @classmethod
    def open(cls, folder: Path, runtime: str, cpu: str, threads: int) -> LatencyTable:
        """Read the table of a runtime and processor from a folder, or create a new one."""
        name = re.sub(r"[^a-z0-9.]+", "-", f"{runtime} {cpu} {threads} threads".lower()).strip("-")
        path = folder / f"latency-{name}.json"
        if path.exists():
            return cls.read(path)
        return cls(path, Document(runtime=runtime, cpu=cpu, threads=threads))

    @classmethod
    def read(cls, path: Path) -> LatencyTable:
        """Read a table."""
        try:
            document = Document.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ValidationError, RecursionError) as error:
            first = str(error).partition("\n")[0]
            raise StateError(f"{path}: not a latency table ({first}).") from error
        if document.format != 1:
            raise StateError(f"{path}: a latency table of another version of Lilliput.")
        return cls(path, document)

    def save(self) -> None:
        """Write the table atomically."""
        write_atomically(self.path, self.document.model_dump_json(indent=1).encode())

    def times(self, model: str) -> Times:
        """Return the times of a model."""
        found = self.document.models.get(model)
        return Times([] if found is None else found.networks)

    def add(self, model: str, milliseconds: float, network: Network) -> None:
        """Add a timed network, and write the table."""
        self.begin(model, milliseconds).networks.append(network)
        self.save()

    def begin(self, model: str, milliseconds: float) -> Model:
        """Return the entry of a model; for a new one, with the latency of the original."""
        return self.document.models.setdefault(model, Model(milliseconds=milliseconds))


@dataclass
class Times:
    """Estimates from timed networks.

    Examples
    --------
    >>> timed = {"conv": TimedLayer(shape=[8, 4], kind="float", share=0.5)}
    >>> times = Times([Network(choice=[0], layers=timed, ratio=0.6)])
    >>> times.layer("conv", (8, 4), "float"), round(times.factor, 3), times.overhead
    (0.5, 1.2, 0.0)
    """

    networks: Sequence[Network]
    known: dict[Key, float] = field(init=False)
    factor: float = field(init=False)
    overhead: float = field(init=False)

    def __post_init__(self) -> None:
        seen: dict[Key, list[float]] = {}
        for network in self.networks:
            for name, layer in network.layers.items():
                seen.setdefault((name, tuple(layer.shape), layer.kind), []).append(layer.share)
        self.known = {key: float(np.mean(shares)) for key, shares in seen.items()}
        self._fits: dict[tuple[str, str], Callable[[Shape], float] | None] = {}
        self._blocks: dict[str, int] = {}
        self.factor, self.overhead = _whole(self.networks)

    def layer(self, name: str, shape: Shape, kind: str) -> float:
        """Return the estimated share of the original's time that a layer takes."""
        found = self.known.get((name, shape, kind))
        return self._fitted(name, shape, kind) if found is None else found

    def estimate(self, layers: Mapping[str, tuple[Shape, str]]) -> float:
        """Return the latency of a network relative to the original's."""
        kernels = sum(self.layer(name, *layer) for name, layer in layers.items())
        return self.factor * kernels + self.overhead

    def error(self) -> float | None:
        """Return the mean relative error of estimates for timed networks, each from the other ones."""
        errors = []
        for i, network in enumerate(self.networks):
            others = Times([x for j, x in enumerate(self.networks) if j != i])
            layers = {k: (tuple(x.shape), x.kind) for k, x in network.layers.items()}
            seen = {(name, own_kind(kind)) for name, kind in others.seen}
            if {(k, own_kind(x.kind)) for k, x in network.layers.items()} <= seen:
                errors.append(abs(others.estimate(layers) / network.ratio - 1))
        return float(np.mean(errors)) if errors else None

    @property
    def seen(self) -> set[tuple[str, str]]:
        """The timed layers, by kind of arithmetic."""
        return {(name, kind) for name, _, kind in self.known}

    def _fitted(self, name: str, shape: Shape, kind: str) -> float:
        key, block = (name, kind), self.block(own_kind(kind))
        if key not in self._fits:
            points = [(_rounded(s, block), t) for s, t in self._points(*key)]
            self._fits[key] = _fit(points) if points else None
        fit = self._fits[key]
        if fit is None:
            return self._by_kind(name, shape, kind)
        return fit(_rounded(shape, block))

    def _points(self, name: str, kind: str) -> list[tuple[Shape, float]]:
        return [(s, t) for (n, s, k), t in self.known.items() if (n, k) == (name, kind)]

    def block(self, kind: str) -> int:
        """Return how many channels the kernels of an arithmetic take at a time.

        Each point of each layer is predicted from the layer's other points; the block with the smallest sum
        of squared errors is chosen, if it is clearly better than no blocks.
        """
        if kind not in self._blocks:
            layers = [self._points(*key) for key in self.seen if own_kind(key[1]) == kind]
            errors = {block: sum(_left_out(x, block) for x in layers) for block in _BLOCKS}
            best = min(_BLOCKS, key=lambda block: errors[block])
            self._blocks[kind] = best if errors[best] < _BETTER * errors[1] else 1
        return self._blocks[kind]

    def _by_kind(self, name: str, shape: Shape, kind: str) -> float:
        """Return the time in another kind, scaled like layers that were timed in both."""
        pairs: dict[str, list[float]] = {}
        for (n, s, k), time in self.known.items():
            if k == kind:
                for other in {k for _, _, k in self.known} - {kind}:
                    if (n, s, other) in self.known:
                        pairs.setdefault(other, []).append(time / self.known[n, s, other])
        # The same arithmetic before another layer, if that was timed.
        kinds = sorted(
            (k for n, k in self.seen if n == name),
            key=lambda k: (own_kind(k) != own_kind(kind), k),
        )
        if not kinds:
            return 0.0  # the runtime executes nothing for it
        scale = float(np.median(pairs[kinds[0]])) if pairs.get(kinds[0]) else 1.0
        return scale * self.layer(name, shape, kinds[0])


def bordering(kind: str, after: str) -> str:
    """Return a kind of arithmetic, with that of the next layer if numbers are converted for it.

    The conversion counts towards the layer that is executed before it.

    Examples
    --------
    >>> bordering("int8", "int8"), bordering("int8", "float"), own_kind("int8 before float")
    ('int8', 'int8 before float', 'int8')
    """
    return kind if kind == after else f"{kind}{_BEFORE}{after}"


def own_kind(kind: str) -> str:
    """Return the arithmetic of a layer alone."""
    return kind.partition(_BEFORE)[0]


def _whole(networks: Sequence[Network]) -> tuple[float, float]:
    """Return factor and constant by which whole networks exceed the sum of their kernels.

    The line through networks by medians (Theil-Sen), which a single disturbed one does not move. A negative
    constant would be noise, and it cannot be determined without networks of different sizes.
    """
    if not networks:
        return 1.0, 0.0
    kernels = np.array([network.kernels for network in networks])
    ratios = np.array([network.ratio for network in networks])
    apart = kernels[:, None] - kernels
    far = apart > _APART * kernels.max()
    if far.any():
        factor = float(np.median((ratios[:, None] - ratios)[far] / apart[far]))
        overhead = float(np.median(ratios - factor * kernels))
        if factor > 0 and overhead > 0:
            return factor, overhead
    return float(np.median(ratios / kernels)), 0.0


def _fit(points: Sequence[tuple[Shape, float]]) -> Callable[[Shape], float]:
    """Fit the time of a layer to the shape of its weight, by least squares with a little ridge."""
    largest = tuple(max(s[i] for s, _ in points) for i in range(len(points[0][0])))
    rows = np.stack([_features(s, largest) for s, _ in points])
    times = np.array([t for _, t in points])
    # Without other evidence, time is proportional to the work.
    prior = np.array([0.0, 0.0, 0.0, float(times @ rows[:, 3] / (rows[:, 3] @ rows[:, 3]))])
    gram = rows.T @ rows + _RIDGE * len(points) * np.eye(4)
    weights = prior + np.linalg.solve(gram, rows.T @ (times - rows @ prior))
    least = _LEAST * float(times.min())
    return lambda shape: max(float(_features(shape, largest) @ weights), least)


def _left_out(points: Sequence[tuple[Shape, float]], block: int) -> float:
    """Return the sum of squared errors of the points of a layer, each estimated from the others."""
    if len(points) < _FEWEST:
        return 0.0
    rounded = [(_rounded(shape, block), time) for shape, time in points]
    found = 0.0
    for i, (shape, time) in enumerate(rounded):
        others = [x for j, x in enumerate(rounded) if j != i]
        found += (_fit(others)(shape) - time) ** 2
    return found


def _rounded(shape: Shape, block: int) -> Shape:
    """Return a shape in whole blocks; for sizes that never change, such as a kernel's, it has no effect."""
    return tuple(-(-n // block) * block for n in shape)


def _features(shape: Shape, largest: Shape) -> NDArray[np.float64]:
    outputs = shape[0] / largest[0]
    inputs = prod(shape[1:]) / max(prod(largest[1:]), 1)
    return np.array([1.0, outputs, inputs, outputs * inputs])
