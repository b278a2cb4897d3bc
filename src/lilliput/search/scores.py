"""The expected loss of each choice: for all layers and choices from one backward pass per batch.

To first order, a change ``Δ`` of a layer's input or output changes the loss of example ``n`` by
``e_n = Σ g ⊙ Δ``, with the gradient ``g`` there. Two kinds of change are considered:

- rounding a layer's weight and input to fewer bits: ``e_n = g_y · layer(x; Q(W) - W) + g_x · (Q(x) - x)``;
- removing channels: every layer that reads them reads zeros, ``e_n = -Σ over readers of g_x · x``.

The loss is the log-likelihood of classes sampled from the model's own predictions, so that no
labels are needed and ``mean(e_n²) / 2`` is the KL divergence of the changed model to second order (the
Fisher information); models without classes are differentiated along random combinations of their outputs.
Scores of one decision never decrease from one choice to the next more aggressive one.

The sums over all positions of a layer are taken before the square, because rounding a weight changes all
of them together. Other searches square each entry separately (NVIDIA ModelOpt's AutoQuantize).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.errors import AlgorithmError
from lilliput.ops.fakequant import covering, fake_quantize
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.least_squares import readers_of
from lilliput.quantization.grids import grid_for
from lilliput.quantization.weight_scales import best_scales
from lilliput.search.space import Decision, Space

Array = NDArray[np.float64]
_UNKNOWN = 1e3  # times the largest score, for choices of layers that no gradient reaches


def find_scores(space: Space, batches: Iterable[Any], keeps_means: bool = False) -> list[Array]:
    """Return the score of each choice of each decision; the model is not changed.

    Parameters
    ----------
    space : Space
        The decisions.
    batches : iterable
        Batches of data.
    keeps_means : bool
        Whether rounding leaves the mean of each channel as it is, because biases are corrected.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> rules = [{"op_types": ["Linear"], "quant_bits": {"choose": [2, 8]}}]
    >>> scores = find_scores(Space(model, rules, torch.zeros(2, 4)), [torch.randn(64, 4)])
    >>> [bool(eight < two) for eight, two in scores]
    [True, True]
    """
    work = _Scores(space, keeps_means)
    backend, model = space.backend, space.model
    forward = backend.feeder(space.example_inputs)

    def loss(model: Any, batch: Any) -> Any:
        outputs = forward(model, batch)
        found = backend.sampled_loss(outputs, work.batches)
        return backend.probe(outputs) if found is None else found

    handles = work.watch()
    try:
        backend.run(model, batches, loss, work.next_batch)
    finally:
        for handle in handles:
            handle.remove()
    return work.finish()


class _Scores:
    """The effects of each decision, example by example."""

    def __init__(self, space: Space, keeps_means: bool) -> None:
        self.space, self.keeps_means, self.batches = space, keeps_means, 0
        self.now: dict[tuple[int, int], Array] = {}  # decision, choice -> effect on each example
        self.squares: dict[tuple[int, int], float] = {}
        self.examples: dict[int, int] = {}
        self.changes: dict[tuple[int, int], Tensor] = {}

    def watch(self) -> list[Any]:
        """Attach to all layers of decisions."""
        handles: list[Any] = []
        watch = self.space.backend.watch_effects
        for number, decision in enumerate(self.space.decisions):
            if decision.key == "quant_bits":
                layer = self.space.layers[decision.layers[0]]
                task, weight_only = self._on_bits(number), self._is_about_weights(decision)
                handles += watch(layer, task, weight_only=weight_only)
        for number, pruned in self._groups():
            readers = readers_of(pruned, self.space.probe.layout)
            for reader in readers:
                task = self._on_channels(
                    number, pruned.group.name, reader.layer, reader.units, True
                )
                handles += watch(reader.layer, task)
            for member in [] if readers else pruned.members:
                task = self._on_channels(
                    number, pruned.group.name, member.layer, member.units, False
                )
                handles += watch(member.layer, task)
        return handles

    def _groups(self) -> Iterable[tuple[int, Any]]:
        for number, decision in enumerate(self.space.decisions):
            for pruned in self.space.probe.layout.pruned if decision.groups else ():
                if pruned.group.name in decision.groups:
                    yield number, pruned

    def next_batch(self) -> None:
        """Square the effects of a batch, example by example."""
        for key, effects in self.now.items():
            self.squares[key] = self.squares.get(key, 0.0) + float((effects**2).sum())
        for number in {number for number, _ in self.now}:
            count = len(next(e for (n, _), e in self.now.items() if n == number))
            self.examples[number] = self.examples.get(number, 0) + count
        self.now = {}
        self.batches += 1

    def finish(self) -> list[Array]:
        """Return the mean squares, not decreasing within a decision."""
        if not self.batches:
            raise AlgorithmError(
                "data: received no batches, expected a few to compute sensitivities."
            )
        found: list[Array | None] = []
        for number, decision in enumerate(self.space.decisions):
            count = self.examples.get(number)
            sums = [self.squares.get((number, i), 0.0) for i in range(len(decision.choices))]
            scores = None if count is None else np.array(sums) / count
            if scores is not None and not np.isfinite(scores).all():
                raise AlgorithmError(
                    f"the sensitivity of {decision} is not a number; check the model and the data for NaN."
                )
            found.append(None if scores is None else np.maximum.accumulate(scores))
        most = max((float(x[-1]) for x in found if x is not None), default=1.0) or 1.0
        return [
            np.arange(size, dtype=np.float64) * (_UNKNOWN * most) if x is None else x
            for x, size in zip(found, self.space.sizes, strict=True)
        ]

    def _add(self, number: int, index: int, effects: Array) -> None:
        key = (number, index)
        self.now[key] = self.now[key] + effects if key in self.now else effects

    def _on_bits(self, number: int) -> Any:
        decision = self.space.decisions[number]
        name = decision.layers[0]

        effects_of = self.space.backend.weight_effects
        chosen = {
            i: self.space.quantized(name, bits)
            for i, bits in enumerate(decision.choices)
            if bits is not None
        }

        def task(read: Tensor, read_grad: Tensor, returned: Tensor, grad: Tensor) -> None:
            rounded = [i for i, layer in chosen.items() if "weight" in self.space.targets_of(layer)]
            changes = [self._change(number, i, chosen[i]) for i in rounded]
            owner = self.space.layers[name]
            moved = effects_of(owner, changes, read, grad, self.keeps_means) if rounded else []
            effects = {i: _array(x) for i, x in zip(rounded, moved, strict=True)}
            for i, layer in chosen.items():
                effect = effects.get(i, np.zeros(1))
                if "input" in self.space.targets_of(layer) and read_grad is not None:
                    grid = grid_for(layer.config, "input", layer)
                    change = fake_quantize(read, covering(read, grid)) - read
                    effect = effect + _per_example(read_grad * change)
                self._add(number, i, effect)

        return task

    def _is_about_weights(self, decision: Decision) -> bool:
        """Whether no choice quantizes the layer's input."""
        layers = [
            self.space.quantized(decision.layers[0], bits)
            for bits in decision.choices
            if bits is not None
        ]
        return all("input" not in self.space.targets_of(layer) for layer in layers)

    def _change(self, number: int, index: int, layer: Any) -> Tensor:
        """Return the change of a weight by rounding."""
        key = (number, index)
        if key not in self.changes:
            held = getattr(layer.module, layer.weight_name)
            weight = namespace(held).detach(held)
            grid = grid_for(layer.config, "weight", layer)
            self.changes[key] = fake_quantize(weight, best_scales(weight, grid)) - weight
        return self.changes[key]

    def _on_channels(self, number: int, group: str, layer: Any, units: Any, reads: bool) -> Any:
        choices = self.space.removed[number]

        def task(read: Tensor, read_grad: Tensor, returned: Tensor, grad: Tensor) -> None:
            product = read * read_grad if reads else returned * grad
            by_channel = _per_channel(product, layer.channel_axis)
            for i, removed in enumerate(choices):
                gone = (units >= 0) & removed[group][units]
                self._add(number, i, by_channel[:, gone].sum(1))

        return task


def _array(values: Tensor) -> Array:
    found: Array = namespace(values).to_numpy(values)
    return found


def _per_example(product: Tensor) -> Array:
    """Return the sum of each example."""
    xp = namespace(product)
    rows = xp.reshape(product, (xp.shape(product)[0], -1))
    found: Array = xp.to_numpy(xp.sum(xp.widen(rows), axis=1))
    return found


def _per_channel(product: Tensor, axis: int) -> Array:
    """Return the sum of each example and channel."""
    xp = namespace(product)
    moved = xp.moveaxis(product, axis, 1)
    examples, channels = (int(n) for n in tuple(xp.shape(moved))[:2])
    rows = xp.reshape(xp.widen(moved), (examples, channels, -1))
    found: Array = xp.to_numpy(xp.sum(rows, axis=2))
    return found
