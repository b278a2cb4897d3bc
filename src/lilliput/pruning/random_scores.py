"""RandomPruner and RandomChannelPruner: remove weights or channels at random, the control of all others.

A criterion that is not better than these has learned nothing about the network. The numbers come from a
seed and the name of the layer, so that masks are the same on every machine and framework, and a layer's
mask does not depend on which others are pruned.

>>> import torch
>>> model = RandomPruner(torch.nn.Linear(10, 10), [{"sparsity": 0.3}], seed=7).compress()
>>> int((model.weight == 0).sum())
30
"""

from __future__ import annotations

import zlib
from typing import Any

from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelMasker, ChannelPruner
from lilliput.pruning.criterion import check_counts
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.registry import register_pruner


def random_scores(name: str, shape: tuple[int, ...], seed: int, like: Tensor) -> Tensor:
    """Return uniform random numbers that depend on nothing but a name, a shape and a seed."""
    import numpy as np  # here: it is not needed to import Lilliput

    xp = namespace(like)
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return xp.from_numpy(generator.random(shape), like=xp.widen(xp.detach(like)))


class RandomMasker(ScoreMasker):
    """Score weights at random.

    Parameters
    ----------
    model, pruner
        See :class:`~lilliput.core.masker.WeightMasker`.
    seed : int
        From which the numbers come.
    """

    def __init__(self, model: Any, pruner: Any, seed: int = 0) -> None:
        super().__init__(model, pruner)
        check_counts(0, seed=seed)
        self.seed = seed

    def score(self, wrapper: Any) -> Tensor:
        """Return a random number for each weight."""
        return random_scores(
            wrapper.name, tuple(wrapper.layer_info.shape), self.seed, wrapper.weight
        )


class RandomChannelMasker(ChannelMasker):
    """Score channels at random; parameters as in :class:`RandomMasker`."""

    reads_weights = True

    def __init__(self, model: Any, pruner: Any, seed: int = 0) -> None:
        super().__init__(model, pruner)
        check_counts(0, seed=seed)
        self.seed = seed

    def score(self, wrapper: Any) -> Tensor:
        """Return a random number for each channel."""
        count = (wrapper.layer_info.out_channels,)
        return random_scores(wrapper.name, count, self.seed, wrapper.weight)


@register_pruner("random")
class RandomPruner(OneShotPruner):
    """Prune random weights, N:M patterns or blocks in one shot, to an exact sparsity.

    Parameters
    ----------
    model, config_list, optimizer, **others
        See :class:`~lilliput.pruning.level.LevelPruner`; ``granularity`` removes patterns or blocks.
    seed : int
        Another seed, other weights.
    """

    masker_type = RandomMasker

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        *,
        seed: int = 0,
        **others: Any,
    ) -> None:
        super().__init__(model, config_list, optimizer, options={"seed": seed}, **others)


@register_pruner("random_channels")
class RandomChannelPruner(ChannelPruner):
    """Prune random channels; see :class:`~lilliput.pruning.channels.ChannelPruner`.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, **channel
        See there.
    seed : int
        Another seed, other channels.
    """

    masker_type = RandomChannelMasker

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        seed: int = 0,
        **channel: Any,
    ) -> None:
        options = {"seed": seed}
        super().__init__(model, config_list, optimizer, example_inputs, options=options, **channel)
