"""Compare the tensors that a runtime computed with the simulation, one by one.

If the last bit of a float makes a value round the other way, later layers round differently, too: after a
few layers, two correct computations of the same network differ as much as a quantized network from a float
one. So each quantized tensor is compared separately. The simulation runs once more, and every tensor that
it quantizes is replaced by that of the runtime, after recording the difference. This leaves the error of
one layer, which is at most one step of its grid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from lilliput.config.layer import QuantType
from lilliput.export.run import sqnr
from lilliput.frameworks.exporting.simulation import Array, Placement, Simulation, Tensor, to_array
from lilliput.ops.namespace import namespace

ONE_STEP = 1.01
_FEW = 0.05
Key = tuple[int, int, int]  # placement, position, call


@dataclass(frozen=True)
class Step:
    """One quantized tensor: the difference between the runtime and the simulation.

    ``lsb`` is the largest difference in steps of the grid, ``share`` the fraction of entries that differ.
    """

    layer: str
    tensor: str
    lsb: float
    sqnr: float
    share: float

    def is_off(self, min_sqnr: float) -> bool:
        """Whether this is more than a few values rounded the other way."""
        return self.sqnr < min_sqnr and (self.lsb > ONE_STEP or self.share > _FEW)


@dataclass(frozen=True)
class Integers:
    """A tensor of the file as the runtime stores it: integers, their scale and zero point.

    If these are computed in each call, they are the names of other tensors.
    """

    name: str
    scale: float | str
    zero: float | str

    @property
    def names(self) -> list[str]:
        """The tensors of the file needed to compute the values."""
        return [self.name, *(x for x in (self.scale, self.zero) if isinstance(x, str))]

    def step(self, values: Mapping[str, Array]) -> float:
        """Return the scale, given the tensors of the file."""
        return float(values[self.scale]) if isinstance(self.scale, str) else self.scale

    def reals(self, values: Mapping[str, Array]) -> Array:
        """Return the real values represented by the integers, given the tensors of the file."""
        zero = float(values[self.zero]) if isinstance(self.zero, str) else self.zero
        shifted = values[self.name].astype(np.float32) - np.float32(zero)
        return np.asarray(shifted * np.float32(self.step(values)))


def compare_steps(
    simulation: Simulation, tensors: Mapping[Key, Integers], values: Mapping[str, Array]
) -> tuple[list[Step], list[Array]]:
    """Return all steps in order of execution, and the model's outputs that follow from them.

    Parameters
    ----------
    simulation : Simulation
        The model on the inputs that the runtime received.
    tensors : mapping
        The tensor of the file for each quantized activation.
    values : mapping
        The tensors that the runtime computed, by name.
    """
    numbers = {(id(p.wrapper), p.quant_type): i for i, p in enumerate(simulation.placements)}
    calls: dict[int, int] = defaultdict(int)
    steps: list[Step] = []

    def force(wrapper: Any, kind: QuantType, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = wrapper.compressor.run(wrapper, kind, given)
        if kind is QuantType.WEIGHT:
            return results
        number = numbers[id(wrapper), kind]
        call, calls[number] = calls[number], calls[number] + 1
        return tuple(forced(number, x, (number, i, call)) for i, x in enumerate(results))

    def forced(number: int, expected: Tensor, key: Key) -> Tensor:
        found = tensors.get(key)
        if found is None or values[found.name].size != prod(expected.shape):
            return expected
        wanted = to_array(expected)
        step = found.step(values)
        received = aligned(found.reals(values), wanted, step)
        steps.append(_step(simulation.placements[number], step, wanted, received))
        return namespace(expected).from_numpy(received, expected)

    outputs = simulation.run(force)
    return steps, [to_array(x).astype(np.float32) for x in outputs]


def aligned(received: Array, expected: Array, step: float | None = None) -> Array:
    """Return a tensor of a file in the shape of the simulation.

    A file may have the axes in another order, for example channels first; if sizes are ambiguous,
    the values decide: the first order in which none is off by more than a ``step`` of the grid, otherwise the
    nearest.
    """
    best, smallest = received, np.inf
    for candidate in _orders(received, expected):
        error = float(np.abs(candidate - expected).max(initial=0.0))
        if error < smallest or best is received:
            best, smallest = candidate, error
        if error <= ONE_STEP * (step or 0.0):
            break
    return np.asarray(best)


def _orders(received: Array, expected: Array) -> Iterator[Array]:
    """Yield a tensor in all orders of its axes that have the expected shape, its own first."""
    yield received.reshape(expected.shape)
    if received.ndim > 2:
        yield np.moveaxis(received, 1, -1).reshape(expected.shape)
    if received.ndim == expected.ndim:
        turned = (received.transpose(order) for order in permutations(range(received.ndim)))
        yield from (x for x in turned if x.shape == expected.shape)


def _step(placement: Placement, scale: float, expected: Array, received: Array) -> Step:
    wanted = expected.astype(np.float32)
    steps_off = np.abs(wanted - received) / scale
    lsb, share = float(steps_off.max(initial=0.0)), float((steps_off > 0.5).mean())
    name, kind = placement.wrapper.name, placement.quant_type.value
    return Step(name, kind, round(lsb, 3), sqnr(wanted, received), share)
