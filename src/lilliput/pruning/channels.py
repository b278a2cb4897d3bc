"""Prune whole channels: the base of criteria that rank filters. Subclasses only implement ``score``.

>>> import torch
>>> class Largest(ChannelMasker):
...     def score(self, wrapper):
...         return wrapper.weight.detach().abs().flatten(1).max(1).values
>>> class LargestPruner(ChannelPruner):
...     masker_type = Largest
>>> model = LargestPruner(torch.nn.Linear(10, 8), [{"sparsity": 0.5}]).compress()
>>> int((model.weight == 0).all(1).sum())
4
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.config.spec import Rule
from lilliput.core.masker import Answers, Targets, WeightMasker
from lilliput.errors import AlgorithmError
from lilliput.ops.channels import channel_rows
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channel_rule import ChannelRule
from lilliput.pruning.criterion import check_scores
from lilliput.pruning.one_shot import OneShotPruner


class ChannelMasker(WeightMasker):
    """Remove the channels with the smallest score from every parameter that has them."""

    default_types = frozenset(
        {
            *("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"),
            *("ConvTranspose3d", "Linear", "Bilinear", "Embedding", "EmbeddingBag"),
            *("MultiheadAttention", "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"),
        }
    )
    keys = frozenset({"min_kept", "round_to"})
    removes_channels = True
    scores_compare = False  # comparable across layers; otherwise divided by the layer's mean
    reads_weights = False  # uses only weights, so any dimension of a weight can be scored

    def score(self, wrapper: Any) -> Tensor:
        """Return the importance of each output channel of a layer; larger is kept."""
        raise NotImplementedError(f"{type(self).__name__} must override score().")

    @classmethod
    def obstacle(cls, layer: LayerInfo) -> str:
        """Return why the criterion cannot score a layer, or an empty string if it can."""
        return ""

    @classmethod
    def lay_out(cls, pruner: Any, selection: Selection) -> Any:
        """Trace the channels of the selected layers through the model."""
        from lilliput.pruning.channel_masks import (
            lay_out,  # imported here: importing Lilliput does not need NumPy
        )

        return lay_out(pruner, selection, cls.obstacle)

    def calc_mask(self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None) -> Any:
        """Return the masks of a single layer."""
        return dict(self.calc_masks([(wrapper, sparsity)])).get(wrapper)

    def calc_masks(self, targets: Targets) -> Answers:
        """Return the masks of all parameters that lose channels."""
        from lilliput.pruning.channel_masks import find_masks

        yield from find_masks(self, self.pruner, dict(targets))

    def unit_scores(self, due: Sequence[Any], wrappers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scores of the units of groups, computed from the layers that produce them."""
        members = {m.key: m for each in due for m in each.members}
        scores = {}
        for key, member in members.items():
            scores[key] = self.rank(_seen_as(wrappers[member.layer.name], member.layer))
        return {each.group.name: each.score(scores) for each in due}

    def is_met(self, wrapper: Any, sparsity: float) -> bool:
        """Whether the requested sparsity is 0; otherwise the ranking of all channels decides."""
        return sparsity == 0

    def rank(self, wrapper: Any) -> Any:
        """Return the scores of a layer as a NumPy array, after validating them."""
        score, expected = self.score(wrapper), wrapper.layer_info.out_channels
        xp = namespace(score)
        if tuple(xp.shape(score)) != (expected,):
            raise AlgorithmError(
                f"{type(self).__name__}.score returned the shape {tuple(xp.shape(score))} for layer "
                f"{wrapper.name!r}, expected one score for each of its {expected} output channels."
            )
        check_scores(score, wrapper.name)
        return xp.to_numpy(score)


def _seen_as(wrapper: Any, layer: Any) -> Any:
    """Return a view of a wrapper whose layer counts its channels along another axis."""
    if wrapper.layer_info.out_axis == layer.out_axis:
        return wrapper
    return SimpleNamespace(
        name=wrapper.name, weight=wrapper.weight, layer_info=layer, module=wrapper.module
    )


def filters(wrapper: Any) -> Tensor:
    """Return the weight of a layer as a matrix with one row per output channel."""
    layer, weight = wrapper.layer_info, wrapper.weight
    xp = namespace(weight)
    return channel_rows(xp.widen(xp.detach(weight)), layer.out_axis, layer.out_groups)


class FilterMasker(ChannelMasker):
    """Score channels by their filters alone."""

    reads_weights = True

    def score(self, wrapper: Any) -> Tensor:
        """Return the score of each filter of a layer."""
        return self.score_filters(filters(wrapper))

    def score_filters(self, rows: Tensor) -> Tensor:
        """Return the importance of each row of a weight matrix; larger is kept."""
        raise NotImplementedError(f"{type(self).__name__} must override score_filters().")


class ChannelPruner(OneShotPruner):
    """Prune whole channels at ``compress()``, by the scores of ``masker_type``.

    With ``example_inputs``, channels are traced through the model: channels that can only be removed
    together are ranked together, and masked in every layer that produces, scales or reads them, so that
    the masked model computes the same as the model without them.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. A rule has one of ``sparsity`` (per
        layer), ``total_sparsity`` (ranked over all its layers; scores are relative to the mean of
        their layer), ``max_macs`` and ``max_params`` (remove channels until the model is within the
        budget), and optionally ``max_sparsity_per_layer``, ``min_kept`` and ``round_to``.
    example_inputs : optional
        Inputs of the model: a tensor, a tuple of arguments or a dict.
    groups : ChannelGroups, optional
        The result of ``channel_groups(model, example_inputs)``, to avoid computing it again.
    masker_type, options : optional
        See :class:`~lilliput.pruning.criterion.CriterionPruner`.
    """

    rule: ClassVar[type[Rule]] = ChannelRule
    masker_type: type[WeightMasker] = ChannelMasker
    default_types: ClassVar[frozenset[str] | None] = ChannelMasker.default_types
    filters_only: bool = False  # mask only filters and their biases, even with example_inputs
