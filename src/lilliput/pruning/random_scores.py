"""RandomPruner and RandomChannelPruner: remove random weights or channels, as a baseline for all others.

A criterion that is not better than these has learned nothing about the network. The numbers depend only on
the seed, the name of the layer and its shape, so that masks are the same on every machine, and a layer's mask
does not depend on which others are pruned. Keras stores the axes of a weight in another order than torch;
layers with the same name and sizes lose the same weights on both.

>>> import torch
>>> model = RandomPruner(torch.nn.Linear(10, 10), [{"sparsity": 0.3}], seed=7).compress()
>>> int((model.weight == 0).sum())
30
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lilliput.core.arguments import passes_on
from lilliput.core.masker import WeightMasker
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelMasker, ChannelPruner
from lilliput.pruning.criterion import CriterionArguments, check_counts
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.registry import register_pruner

if TYPE_CHECKING:
    from typing_extensions import Unpack


def random_scores(
    name: str, shape: tuple[int, ...], seed: int, like: Tensor, axes: Sequence[int] = (0, 1)
) -> Tensor:
    """Return uniform random numbers that depend only on a name, a shape and a seed.

    They are drawn for the outputs, inputs and other axes, in this order; ``axes`` are the first two of these.
    """
    import numpy as np  # imported here: importing Lilliput does not need it

    xp = namespace(like)
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    first = list(axes)[: len(shape)]
    others = [i for i in range(len(shape)) if i not in first]
    drawn = generator.random([shape[i] for i in (*first, *others)])
    ordered = np.ascontiguousarray(np.moveaxis(drawn, range(len(first)), first))
    return xp.from_numpy(ordered, like=xp.widen(xp.detach(like)))


class SeededMasker(WeightMasker):
    """Base class of maskers with random scores from a seed."""

    def __init__(self, model: Any, pruner: Any, seed: int = 0) -> None:
        super().__init__(model, pruner)
        check_counts(0, seed=seed)
        self.seed = seed


class RandomMasker(SeededMasker, ScoreMasker):
    """Score weights at random."""

    def score(self, wrapper: Any) -> Tensor:
        """Return a random number for each weight."""
        layer = wrapper.layer_info
        axes = (layer.out_axis, layer.in_axis)
        return random_scores(wrapper.name, tuple(layer.shape), self.seed, wrapper.weight, axes)


class RandomChannelMasker(SeededMasker, ChannelMasker):
    """Score channels at random."""

    reads_weights = True

    def score(self, wrapper: Any) -> Tensor:
        """Return a random number for each channel."""
        count = (wrapper.layer_info.out_channels,)
        return random_scores(wrapper.name, count, self.seed, wrapper.weight)


class SeededPruner(OneShotPruner):
    """Base class of pruners that choose at random.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, groups
        See :class:`~lilliput.pruning.criterion.CriterionPruner`.
    seed : int
        A different seed selects different weights or channels.
    """

    @passes_on(CriterionArguments, to=OneShotPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        seed: int = 0,
        **others: Unpack[CriterionArguments],
    ) -> None:
        super().__init__(
            model, config_list, optimizer, example_inputs, options={"seed": seed}, **others
        )


@register_pruner("random")
class RandomPruner(SeededPruner):
    """Prune random weights, N:M patterns or blocks in one shot, to an exact sparsity.

    Rules are those of :class:`~lilliput.pruning.level.LevelPruner`; ``granularity`` removes patterns or
    blocks. A different ``seed`` selects different weights.
    """

    masker_type = RandomMasker


@register_pruner("random_channels")
class RandomChannelPruner(SeededPruner, ChannelPruner):
    """Prune random channels; see :class:`~lilliput.pruning.channels.ChannelPruner`.

    A different ``seed`` selects different channels.
    """

    masker_type = RandomChannelMasker
