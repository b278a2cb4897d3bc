"""LeastSquaresPruner: remove the channels that the others can compensate for.

The score of a channel is how much its removal changes the model's outputs once the layers that read it
are refitted to the remaining channels. To second order, with Kronecker factors::

    s_i = sum over readers of  H_ii / (C⁻¹)_ii,     H = Wᵀ G W

where ``C`` is the covariance of a reader's inputs and ``G`` the second moments of the gradient of the
outputs with respect to the reader's output. Channels are removed greedily: the cheapest first, then the
readers are refitted, and so on (see ``removal_costs``). Hassibi & Stork, "Optimal brain surgeon", 1993;
Wang et al., "EigenDamage: structured pruning in the Kronecker-factored eigenbasis", 2019.

A constant channel costs nothing, since its readers' biases can absorb it; neither does a channel that
repeats others. ``reconstruct`` applies the refit to the model. Scores are comparable across layers, and for
a budget they are divided by the multiplications or parameters saved.

>>> import torch
>>> _ = torch.manual_seed(0)  # another unit might happen to be dead, and be pruned instead
>>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
>>> with torch.no_grad():
...     model[0].weight[1] = 0  # its output is its bias, for any input
>>> pruner = LeastSquaresPruner(model, [{"sparsity": 0.4}], example_inputs=torch.zeros(2, 2))
>>> pruner.calibrate([torch.randn(64, 2)])
>>> pruner.compress()[2].weight.ne(0)[0].tolist()[1]
False
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.ops.channels import channel_rows
from lilliput.ops.namespace import Tensor, namespace
from lilliput.progress import track
from lilliput.pruning.channels import ChannelMasker, ChannelPruner
from lilliput.pruning.collecting import CollectingMasker, DifferentiatingPruner
from lilliput.registry import register_pruner

_READERS = frozenset({"Conv1d", "Conv2d", "Conv3d", "Linear"})


class LeastSquaresMasker(CollectingMasker, ChannelMasker):
    """Score channels by the error that remains after refitting their readers."""

    scores_compare = True

    def __init__(self, model: Any, pruner: Any, training_batches: int = 20) -> None:
        self.read: dict[str, Seen] = {}  # by layer: its inputs
        self.returned: dict[str, Seen] = {}  # by layer: the gradient of its output
        self._is_finished = False
        self._handles: list[Any] = []
        super().__init__(model, pruner, training_batches)

    @classmethod
    def lay_out(cls, pruner: Any, selection: Selection) -> Any:
        """As in :class:`ChannelMasker`; channels whose readers cannot be observed are not pruned."""
        if pruner.example_inputs is None and pruner.given_groups is None:
            raise ConfigError(
                f"{type(pruner).__name__} needs example_inputs to find the layers that read each channel."
            )
        from lilliput.pruning.channel_masks import lay_out

        layout = lay_out(pruner, selection, cls.obstacle)
        unseen = {
            member.layer.name
            for each in layout.pruned
            if not readers_of(each, layout)
            for member in each.members
        }
        if not unseen:
            return layout
        pruner.given_groups = layout.groups
        why = "no convolution or linear layer that reads them can be observed"
        return lay_out(pruner, selection, lambda layer: why if layer.name in unseen else "")

    def start(self) -> None:
        """Start observing the inputs of the readers."""
        if not self._handles:
            layout = self.pruner.layout
            readers = {r.layer.name: r.layer for p in layout.pruned for r in readers_of(p, layout)}
            for layer in readers.values():
                self._handles += self.pruner.watch(layer, self._collect)

    def stop(self) -> None:
        """Stop observing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def start_over(self) -> None:
        """Discard the collected statistics."""
        self.read, self.returned, self._is_finished = {}, {}, False

    def is_ready(self) -> bool:
        """Whether every reader has seen enough batches."""
        least = min([seen.batches for seen in self.returned.values()], default=0)
        return self._is_finished or least >= self.training_batches

    def what_is_missing(self) -> str:
        """Return how many batches are missing."""
        least = min([seen.batches for seen in self.returned.values()], default=0)
        left = self.training_batches - least
        return "" if self.is_ready() else f"{left} of {self.training_batches} batches are missing"

    def finish(self) -> None:
        """Stop collecting and mark the statistics as complete."""
        for each in self.pruner.layout.pruned:
            for reader in readers_of(each, self.pruner.layout):
                name = reader.layer.name
                if name not in self.returned or not self.returned[name].batches:
                    raise AlgorithmError(
                        f"no data was collected from layer {name!r}: no batch was run, or none reached it."
                    )
        self._is_finished = True

    def unit_scores(self, due: Sequence[Any], wrappers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the removal cost of each unit, by group."""
        from lilliput.pruning.removal_costs import removal_costs

        layout = self.pruner.layout
        return {
            each.group.name: removal_costs(
                [self._reading(reader) for reader in readers_of(each, layout)], each.group.size
            )
            for each in track(due, "ranking channels", self.shows_progress)
        }

    def _reading(self, reader: Reader) -> Any:
        """Return how a layer reads a group, and how much the outputs depend on that."""
        from lilliput.pruning.removal_costs import Reading

        layer = reader.layer
        read, returned = self.read[layer.name], self.returned[layer.name]
        covariance = read.second_moments(self.pruner.sum_over_processes, is_centred=True)
        effect = returned.second_moments(self.pruner.sum_over_processes)
        weight = self.pruner.weight_of(layer)
        xp = namespace(weight)
        taps = xp.to_numpy(xp.widen(xp.detach(weight))).reshape(*layer.shape[:2], -1)
        energy = sum(tap.T @ effect @ tap for tap in taps.transpose(2, 0, 1))
        return Reading(covariance, energy, reader.units, read.count)

    def _collect(self, wrapper: Any, input_: Any, output: Any) -> None:
        layer = wrapper.layer_info
        read = self.read.setdefault(layer.name, Seen())
        returned = self.returned.setdefault(layer.name, Seen())
        is_watching = self.is_calibrating or self.pruner.is_training()
        is_full = returned.batches >= self.training_batches and not self.is_calibrating
        if self._is_finished or is_full or not is_watching:
            return
        given = input_[0] if isinstance(input_, (tuple, list)) else input_
        xp = namespace(given)
        rows = channel_rows(xp.widen(xp.detach(given)), layer.channel_axis)
        examples = int(xp.shape(given)[0])

        if not examples or not self.can_count(rows, layer.name):
            return

        def take(gradient: Tensor) -> None:
            if not self.can_count(gradient, layer.name):
                return
            read.add(rows, int(xp.shape(rows)[1]))
            returned.add(channel_rows(xp.widen(gradient), layer.channel_axis), examples)

        self.pruner.on_gradient(output, take)


@dataclass
class Seen:
    """Sums over the values that a layer has read or returned."""

    batches: int = 0
    count: int = 0
    total: Tensor = None
    products: Tensor = None

    def add(self, rows: Tensor, count: int) -> None:
        """Add a batch with one row per channel, as ``count`` observations."""
        xp = namespace(rows)
        total, products = xp.sum(rows, axis=1), xp.products(rows)
        self.total = total if self.total is None else self.total + total
        self.products = products if self.products is None else self.products + products
        self.count += count
        self.batches += 1

    def second_moments(
        self, over_processes: Callable[[Tensor], Tensor], is_centred: bool = False
    ) -> Any:
        """Return the mean products of all channels over all processes, about zero or their means."""
        xp = namespace(self.total)
        total, products = (xp.to_numpy(over_processes(x)) for x in (self.total, self.products))
        count = float(xp.to_numpy(over_processes(xp.ones_like(self.total[:1]) * self.count))[0])
        mean = total / count
        return products / count - (mean[:, None] * mean if is_centred else 0.0)


@dataclass(frozen=True, eq=False)
class Reader:
    """A layer that reads channels of a group, and the unit of each of its inputs."""

    layer: LayerInfo
    units: Any  # array of int


def readers_of(pruned: Any, layout: Any) -> list[Reader]:
    """Return the layers that read the channels of a group and can be observed."""
    layers = {
        name: decision.layer
        for decision in layout.selection.decisions
        if not decision.layer.types.isdisjoint(_READERS) and not decision.layer.is_bypassed
        for name in decision.layer.tensor_names
    }
    found = []
    for piece in pruned.group.slices:
        layer = layers.get(piece.tensor)
        if layer is None or piece.is_output or piece.units.ndim > 1:
            continue
        if piece.dim == layer.in_axis:
            found.append(Reader(layer, piece.units))
    return found


@register_pruner("least_squares")
class LeastSquaresPruner(DifferentiatingPruner, ChannelPruner):
    """Prune the channels that cost least once the layers that read them are refitted.

    For models that are pruned with little or no training: ``calibrate`` on a few hundred
    unlabelled examples, ``compress()``, then ``reconstruct``. By default, calibration differentiates a
    random combination of the model's outputs, so that a channel is scored by how much it changes them;
    pass a ``loss`` to score by that. The arguments are those of
    :class:`~lilliput.pruning.collecting.CollectingPruner`; ``example_inputs`` are required.
    """

    paper = "Hassibi & Stork 1993, Optimal brain surgeon; Wang et al. 2019, EigenDamage"
    backends = ("torch",)

    masker_type = LeastSquaresMasker

    def _run(self, batches: Iterable[Any], forward: Callable[..., Any] | None) -> None:
        run = forward or self._backend.feeder(self.example_inputs)
        derived = self._loss or (lambda model, batch: self._backend.probe(run(model, batch)))
        self._backend.run(self.bound_model, batches, derived, lambda: None)
