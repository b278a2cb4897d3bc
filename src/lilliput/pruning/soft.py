"""Soft thresholds on a schedule (ST-3): pruned weights keep training, and may become nonzero again.

Vanderschueren & De Vleeschouwer, "Are straight-through gradients and soft-thresholding all you need for
sparse training?", 2023. A layer computes with shrunk weights, and all raw weights receive their gradient
unchanged::

    w' = r * sign(w) * max(|w| - t, 0)        dL/dw = dL/dw'

where ``t`` is the largest magnitude among the weights that the schedule prunes (slightly less if an equally
large one is kept): of the layer or, with ``total_sparsity`` as in the paper, of all layers of the rule. So
sparsity grows without jumps, and a weight that was pruned too early becomes nonzero again when its raw value
grows. ``r`` compensates for the loss of each output: ``r = 1.01 / (q + 0.01)``, as in the authors' code,
where ``q`` is the share of its magnitudes that is kept. Blocks are shrunk as a whole: with ``|W|`` the sum of
magnitudes in a block, ``W' = r * W * max(1 - t / |W|, 0)``.

>>> import torch
>>> weight = torch.tensor([3.0, -2.0, 0.5])
>>> soft_threshold(weight, torch.tensor(1.0))
tensor([ 2., -1.,  0.])
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.core.arguments import passes_on
from lilliput.core.checks import checked_flag
from lilliput.core.masker import Targets, WeightMasker
from lilliput.errors import ConfigError, Problem
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.criterion import check_counts
from lilliput.pruning.granularity import find_patterns, spread_blocks, sum_blocks
from lilliput.pruning.level import LevelMasker
from lilliput.pruning.named import NamedCriterionArguments
from lilliput.pruning.one_shot import ranked_together
from lilliput.pruning.scheduled import ScheduledPruner

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BELOW = 1 - 2**-7  # makes a number smaller in any precision that weights have


def magnitudes(weight: Tensor, layer: LayerInfo) -> Tensor:
    """Return the magnitude of each weight, or of its block."""
    xp = namespace(weight)
    size = xp.abs(weight)
    block = layer.config.get("granularity")
    if block is None:
        return size
    return spread_blocks(sum_blocks(size, block, layer), block, layer, xp.shape(weight))


def soft_threshold(weight: Tensor, threshold: Tensor, size: Tensor | None = None) -> Tensor:
    """Return weights shrunk towards zero by a threshold, or in proportion to their shrunk block.

    Parameters
    ----------
    weight, threshold : tensor
        The weights, and the amount by which they are shrunk.
    size : tensor, optional
        The magnitude of each weight's block, which is shrunk instead of its own.
    """
    xp = namespace(weight)
    if size is None:
        return xp.sign(weight) * xp.relu(xp.abs(weight) - threshold)
    return weight * (xp.relu(size - threshold) / xp.positive(size))


def output_scale(weight: Tensor, mask: Tensor, axis: int) -> Tensor:
    """Return the factor that compensates each output for its masked weights, in a broadcastable shape.

    Examples
    --------
    >>> import torch
    >>> output_scale(torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]]), 0)
    tensor([[1.0000],
            [1.9804]])
    """
    xp = namespace(weight)
    size, rank = xp.abs(weight), len(xp.shape(weight))
    if rank < 2:
        return xp.ones_like(weight)
    others = tuple(i for i in range(rank) if i != axis % rank)
    kept, total = (xp.sum(x, axis=others) for x in (size * mask, size))
    scale = 1.01 / (kept / xp.positive(total) + 0.01)
    return xp.reshape(scale, tuple(1 if i in others else -1 for i in range(rank)))


class SoftScheduledPruner(ScheduledPruner):
    """Move each layer's sparsity along a schedule, by masks or by soft thresholds.

    Parameters
    ----------
    model, config_list, optimizer, pruning_algorithm, example_inputs, groups, pruning_params
        See :class:`~lilliput.pruning.scheduled.ScheduledPruner`.
    soft : bool
        Shrink weights by a threshold, with a straight-through gradient to all of them (ST-3). The
        masks are updated after each optimizer step, for single weights or blocks.
    hard_epoch : int, optional
        The epoch at which the shrunk weights become permanent and zeros stay zero. By default, half the
        length of the schedule after its end, which is the last third of a training of that length.
        ``strip()`` does the same at any time.
    """

    @passes_on(NamedCriterionArguments, to=ScheduledPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        pruning_algorithm: str | type = "level",
        *,
        soft: bool = False,
        hard_epoch: int | None = None,
        **others: Unpack[NamedCriterionArguments],
    ) -> None:
        if hard_epoch is not None and not soft:
            raise ConfigError("hard_epoch: received without soft=True, which it requires.")
        if hard_epoch is not None:
            check_counts(0, hard_epoch=hard_epoch)
        self.computes_weights, self.hard_epoch = checked_flag("soft", soft), hard_epoch
        super().__init__(model, config_list, optimizer, pruning_algorithm, **others)
        if soft:
            self.set_wrappers_attribute("is_soft", True)

    def masker_of(self, algorithm: str | type) -> type[WeightMasker]:
        """As in :class:`NamedCriterionPruner`; soft thresholds require magnitudes."""
        masker = super().masker_of(algorithm)
        if self.computes_weights and masker.removes_channels:
            raise ConfigError(
                f"soft: {algorithm!r} removes channels, but a norm after a channel that is only shrunk "
                "scales it up again; expected pruning_algorithm='level', with 'granularity': [1, inputs] in "
                "the rule for whole filters of a layer."
            )
        if self.computes_weights and not issubclass(masker, LevelMasker):
            raise ConfigError(
                f"soft: weights are shrunk by magnitude, but {algorithm!r} ranks by another criterion; "
                "expected pruning_algorithm='level', for blocks with 'granularity' in the rule."
            )
        return masker

    def compute_weight(self, wrapper: Any, weight: Tensor, mask: Tensor) -> Tensor:
        """Return the shrunk weight; its gradient goes to the raw weight."""
        xp = namespace(weight)
        raw = xp.detach(weight)
        threshold = xp.to_float(wrapper.threshold, like=raw)
        is_blocked = "granularity" in wrapper.config
        size = magnitudes(raw, wrapper.layer_info) if is_blocked else None
        scale = output_scale(raw, mask, wrapper.layer_info.out_axis)
        return xp.straight_through(weight, soft_threshold(raw, threshold, size) * mask * scale)

    def targets(self) -> Targets:
        """As in :meth:`ScheduledPruner.targets`; soft layers are updated after each step."""
        hard = self._due([wrapper for wrapper in self._unmasked() if not wrapper.keeps_raw()])
        return [*hard, *self._with_sparsity(self._soft())]

    def update_mask(self) -> None:
        """Update the masks, and the thresholds with them."""
        super().update_mask()
        with self._backend.no_grad():
            for group in ranked_together(self._soft()):
                borders = [self._border(wrapper) for wrapper in group]
                xp = namespace(borders[0][0])
                pruned = reduce(xp.maximum, (border for border, _ in borders))
                for wrapper, (_, kept) in zip(group, borders, strict=True):
                    threshold = xp.where(pruned < kept, pruned, kept * _BELOW)
                    wrapper.set_attribute("threshold", xp.to_float(threshold, like=kept))

    def _border(self, wrapper: Any) -> tuple[Tensor, Tensor]:
        """Return the largest magnitude that the mask of a layer prunes, and the smallest that it keeps."""
        size = magnitudes(self._backend.value_of(wrapper.weight), wrapper.layer_info)
        xp = namespace(size)
        is_pruned = wrapper.weight_mask == 0
        pruned = xp.max(xp.where(is_pruned, size, xp.zeros_like(size)))
        return pruned, -xp.max(xp.where(is_pruned, -math.inf, -size))

    def _soft(self) -> list[Any]:
        """Return the wrappers of layers whose weights are shrunk."""
        return [wrapper for wrapper in self.get_modules_wrapper() if wrapper.keeps_raw()]

    def _is_due(self) -> bool:
        return super()._is_due() or bool(self._soft())

    def _refresh(self) -> None:
        over = [wrapper for wrapper in self._soft() if self._is_over(wrapper)]
        for wrapper in over:
            if float(self._backend.value_of(wrapper.threshold)) == 0:  # not shrunk so far
                wrapper.set_attribute("is_soft", False)
        super()._refresh()
        shrunk = [wrapper for wrapper in over if wrapper.keeps_raw()]
        if shrunk:
            self.harden(shrunk)

    def _is_over(self, wrapper: Any) -> bool:
        """Whether the weights of a layer are no longer shrunk."""
        start, end = (wrapper.config[key] for key in ("start_epoch", "end_epoch"))
        default: int = end + (end - start + 1) // 2
        return self.now_epoch >= (default if self.hard_epoch is None else self.hard_epoch)

    def _prepare(self) -> None:
        super()._prepare()
        for wrapper in self.get_modules_wrapper() if self.computes_weights else ():
            if "threshold" not in wrapper.tensors():
                weight = self._backend.value_of(wrapper.weight)
                xp = namespace(weight)
                wrapper.set_attribute("threshold", xp.zeros_like(xp.max(xp.detach(weight))))

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return rules with an N:M pattern, which a threshold cannot produce."""
        why = "soft=True shrinks all weights or blocks of a layer by one threshold"
        patterns = find_patterns(selection, why) if self.computes_weights else []
        return [*super()._find_problems(selection), *patterns]
