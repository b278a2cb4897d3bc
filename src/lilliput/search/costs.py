"""Costs of choices: parameters, operations, bytes and bits as sums of terms, counted on the graph.

The counts are those of the cut network: each tensor and each op is counted for every
combination of the decisions that affect it. A tensor affected by more than two decisions (a convolution
that reads a concatenation) is a sum over pairs of them, because its size is a sum of outputs times inputs.

>>> import torch
>>> from lilliput.search.solve import total
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> rules = [{"op_types": ["Linear"], "sparsity": {"choose": [0, 0.5]}}]
>>> counted = Counts(Space(model, rules, torch.zeros(2, 4)))
>>> total(counted.parameters(), (0,)), total(counted.parameters(), (1,)), 5 * 8 + 9 * 2
(58.0, 30.0, 58)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from lilliput.frameworks.work import batch_of
from lilliput.graph.analysis import Kept
from lilliput.graph.costs import macs_by_op
from lilliput.search.solve import Array, Term
from lilliput.search.space import FLOAT_BITS, Space

_BYTES = 4  # of a number that is not quantized


class Counts:
    """The costs of a space that can be counted without running anything."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.analysis = space.groups.analysis
        self.sizes = space.sizes
        self._kept: dict[tuple[tuple[int, int], ...], Kept] = {}
        groups = {group.name: group for group in space.groups.groups}
        self.touching: dict[str, list[int]] = {}  # tensor -> decisions that cut it
        for number, decision in enumerate(space.decisions):
            for name in decision.groups:
                for piece in groups[name].slices:
                    held = self.touching.setdefault(piece.tensor, [])
                    if number not in held:
                        held.append(number)

    def parameters(self) -> list[Term]:
        """Return the number of trained parameters."""
        return merged(term for terms in self.by_tensor.values() for term in terms)

    def macs(self) -> list[Term]:
        """Return the multiply-accumulates for one example."""
        whole = macs_by_op(self.analysis, self._flags({}))
        users: dict[int, list[int]] = {number: [] for number in whole}
        for d, size in enumerate(self.sizes):
            if self.space.decisions[d].groups and size:
                now = macs_by_op(self.analysis, self._flags({d: size - 1}))
                for number, count in now.items():
                    if count != whole[number]:
                        users[number].append(d)
        terms: list[Term] = []
        for number, decisions in users.items():
            terms += expand(decisions, self.sizes, self._macs_of(number))
        batch = self.batch()
        return merged(Term(t.decisions, t.values / batch) for t in terms)

    def bytes(self) -> list[Term]:
        """Return the bytes of all parameters, with whole bytes per weight for quantized layers."""
        return self._by_bits(lambda bits: [_BYTES if b == FLOAT_BITS else -(-b // 8) for b in bits])

    def bits_above(self, average: float) -> list[Term]:
        """Return by how many bits all weights with a choice of bits exceed an average; at most 0 if not."""
        terms: list[Term] = []
        for name, number in self.weights.items():
            above = np.array(self.space.weight_bits(number), float) - average
            terms += [_times(term, number, above) for term in self.by_tensor[name]]
        return merged(terms)

    def average_bits(self, choice: Sequence[int]) -> float:
        """Return the average bits of all weights with a choice of bits, 32 if there are none."""
        bits = held = 0.0
        for name, number in self.weights.items():
            count = sum(term.at(choice) for term in self.by_tensor[name])
            held += count
            bits += count * self.space.weight_bits(number)[choice[number]]
        return bits / held if held else float(FLOAT_BITS)

    @cached_property
    def weights(self) -> dict[str, int]:
        """The weights whose bits are decided, each with its decision."""
        found: dict[str, int] = {}
        for number, decision in enumerate(self.space.decisions):
            for layer in decision.layers if decision.key == "quant_bits" else ():
                names = self.space.layers[layer].tensor_names
                found |= {name: number for name in names if name in self.by_tensor}
        return found

    @cached_property
    def by_tensor(self) -> dict[str, list[Term]]:
        """The number of entries of each trained parameter."""
        found = {}
        for name, count in self.analysis.graph.trained.items():
            if name in self.analysis.axes:
                found[name] = expand(self.touching.get(name, ()), self.sizes, self._entries(name))
            else:
                found[name] = [Term((), np.array(float(count)))]
        return found

    def shape(self, name: str, chosen: dict[int, int]) -> tuple[int, ...]:
        """Return the shape of a parameter, given some decisions; the others remove nothing."""
        return tuple(self._kept_with(chosen).parameter(name))

    def _by_bits(self, widths: Callable[[list[int]], list[int]]) -> list[Term]:
        terms: list[Term] = []
        for name, counted in self.by_tensor.items():
            number = self.weights.get(name)
            if number is None:
                terms += [Term(t.decisions, t.values * _BYTES) for t in counted]
            else:
                width = np.array(widths(self.space.weight_bits(number)), float)
                terms += [_times(term, number, width) for term in counted]
        return merged(terms)

    def _entries(self, name: str) -> Callable[[dict[int, int]], float]:
        return lambda chosen: float(prod(self.shape(name, chosen)))

    def _macs_of(self, number: int) -> Callable[[dict[int, int]], float]:
        def count(chosen: dict[int, int]) -> float:
            return float(macs_by_op(self.analysis, self._flags(chosen), {number})[number])

        return count

    def _kept_with(self, chosen: dict[int, int]) -> Kept:
        key = tuple(sorted(chosen.items()))
        if key not in self._kept:
            self._kept[key] = Kept(self.analysis, self._flags(chosen))
        return self._kept[key]

    def _flags(self, chosen: dict[int, int]) -> Any:
        removed: dict[str, Any] = {}
        for number, index in chosen.items():
            removed |= self.space.removed[number][index]
        return self.space.groups.flags(removed)

    def batch(self) -> int:
        """Return the number of examples in the example inputs."""
        shapes = [x.shape for x in self.analysis.graph.inputs]
        return batch_of(np.empty(shape, np.int8) for shape in shapes)


def expand(
    decisions: Sequence[int], sizes: Sequence[int], value: Callable[[dict[int, int]], float]
) -> list[Term]:
    """Return a function of decisions as terms; for three or more, it must be a sum over pairs.

    Examples
    --------
    >>> terms = expand([0, 1, 2], [2, 2, 2], lambda c: (1.0 + c.get(0, 0)) * (c.get(1, 0) + c.get(2, 0)))
    >>> sum(term.at((1, 1, 1)) for term in terms)
    4.0
    """
    if len(decisions) <= 2:
        return [Term(tuple(decisions), _table(decisions, sizes, value))]
    zero = value({})
    single = {d: _table([d], sizes, value) - zero for d in decisions}
    terms = [Term((), np.array(zero)), *(Term((d,), table) for d, table in single.items())]
    for one, two in combinations(decisions, 2):
        both = _table([one, two], sizes, value) - zero
        both -= single[one][:, None] + single[two][None]
        if np.abs(both).max() > 0:
            terms.append(Term((one, two), both))
    return terms


def _table(
    decisions: Sequence[int], sizes: Sequence[int], value: Callable[[dict[int, int]], float]
) -> Array:
    shape = [sizes[d] for d in decisions]
    found = np.empty(shape)
    for index in np.ndindex(*shape):
        found[index] = value(dict(zip(decisions, index, strict=True)))
    return found


def _times(term: Term, number: int, factors: Array) -> Term:
    """Return a term multiplied by the factors of another decision."""
    return Term((*term.decisions, number), term.values[..., None] * factors)


def merged(terms: Any) -> list[Term]:
    """Return terms over the same decisions as one."""
    found: dict[tuple[int, ...], Array] = {}
    for term in terms:
        order = np.argsort(term.decisions, kind="stable")
        key = tuple(term.decisions[i] for i in order)
        values = np.transpose(term.values, order) if len(key) > 1 else term.values
        found[key] = found[key] + values if key in found else values
    return [Term(key, values) for key, values in found.items()]
