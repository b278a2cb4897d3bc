"""v3's masks: scores of blocks, shares or thresholds, groups of layers, and layers that follow others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lilliput.compat.nni.config.target_rules import Target
from lilliput.core.masker import Answers, Targets, WeightMasker
from lilliput.errors import ConfigError
from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.pruning.balance import right_aligned
from lilliput.pruning.l1 import L1NormMasker
from lilliput.pruning.l2 import L2NormMasker
from lilliput.pruning.level import LevelMasker

# Criteria whose score of a block is the norm of its weights, and which norm.
_NORMS = {LevelMasker: 1, L1NormMasker: 1, L2NormMasker: 2}


@cache
def target_masker(masker_type: type[WeightMasker]) -> type[WeightMasker]:
    """Return a current criterion adapted to v3's rules."""
    return type(f"Target{masker_type.__name__}", (TargetMasker, masker_type), {})


class TargetMasker(WeightMasker):
    """Additions to a criterion; each layer is separate, unless a rule names a group.

    The pruner's ``target_of(wrapper)`` returns the target.
    """

    @classmethod
    def lay_out(cls, pruner: Any, selection: Any) -> Any:
        """Trace no channels: v3 masked exactly the layers that rules name."""
        return None

    def calc_masks(self, targets: Targets) -> Answers:
        """Return the masks of all due layers, and of those that align with them."""
        asked = dict(targets)
        known = {w: self.pruner.target_of(w) for w in self.pruner.get_modules_wrapper()}
        scores = {w: self._blocks(w, known[w]) for w in asked if known[w].align is None}
        kept: dict[Any, Tensor] = {}
        for members in _groups(scores, known).values():
            of = {w: known[w] for w in members}
            kept |= _choose({w: scores[w] for w in members}, of, asked[members[0]])
        masks = {w: _expand(keep, w.weight) for w, keep in kept.items()}
        for wrapper, target in known.items():
            if target.align is not None:
                masks |= _followed(wrapper, target, masks, known)
        return [(w, _answer(w, mask, known[w])) for w, mask in masks.items()]

    def _blocks(self, wrapper: Any, target: Target) -> Tensor:
        """Return the score of each block of a weight, with pruned blocks below all others."""
        weight = wrapper.weight.detach().float()
        norm = next((p for kind, p in _NORMS.items() if isinstance(self, kind)), None)
        sizes = block_sizes(wrapper, target, is_single=isinstance(self, LevelMasker))
        if norm is not None:
            scores = _reduced(weight.abs() ** norm, sizes, torch.sum) ** (1 / norm)
        else:
            scores = self._rows(wrapper, sizes)
        alive = _reduced(wrapper.weight_mask.float(), sizes, torch.amax) > 0
        return torch.where(alive, scores, torch.full_like(scores, -math.inf))

    def _rows(self, wrapper: Any, sizes: Sequence[int]) -> Tensor:
        """Return the scores of output channels, the only ones of some criteria."""
        criterion: Any = self
        weight = wrapper.weight
        if [size == 1 for size in sizes] != [i == 0 for i in range(weight.dim())]:
            raise ConfigError(
                f"{type(self.pruner).__name__}: it scores output channels, so 'granularity' must be "
                f"'out_channel' or omitted; received another one for layer {wrapper.name!r}. "
                "L1NormPruner, L2NormPruner and LevelPruner score blocks."
            )
        scores = torch.as_tensor(criterion.rank(wrapper)).to(weight.device, torch.float32)
        return scores.reshape(-1, *[1] * (weight.dim() - 1))


def block_sizes(wrapper: Any, target: Target, is_single: bool) -> list[int]:
    """Return the size of a block along each dimension of a weight."""
    shape, granularity = list(wrapper.weight.shape), target.granularity
    if granularity is None and is_single:
        return [1] * len(shape)
    if isinstance(granularity, tuple):
        return right_aligned(wrapper.name, shape, granularity)
    if "Transpose" in wrapper.layer_info.type:
        raise ConfigError(
            f"layer {wrapper.name!r} is a transposed convolution, whose weight has its channels the other "
            "way round; exclude it, or give it a rule without v3's keys."
        )
    dim = 1 if granularity == "in_channel" else 0
    if dim >= len(shape):
        raise ConfigError(
            f"layer {wrapper.name!r} has a weight of one dimension, so no 'in_channel'."
        )
    return [1 if i == dim else size for i, size in enumerate(shape)]


def _reduced(tensor: Tensor, sizes: Sequence[int], how: Any) -> Tensor:
    """Return one entry per block."""
    split = [x for n, part in zip(tensor.shape, sizes, strict=True) for x in (n // part, part)]
    return how(tensor.reshape(split), dim=list(range(1, len(split), 2)))  # type: ignore[no-any-return]


def _expand(keep: Tensor, weight: Tensor) -> Tensor:
    """Return the mask of a weight from one entry per block."""
    for dim, (size, count) in enumerate(zip(weight.shape, keep.shape, strict=True)):
        keep = keep.repeat_interleave(size // count, dim)
    return keep.to(weight.dtype)


def _groups(scores: Mapping[Any, Tensor], known: Mapping[Any, Target]) -> dict[Any, list[Any]]:
    """Return which layers are decided together; most are separate."""
    groups: dict[Any, list[Any]] = {}
    for wrapper in scores:
        target = known[wrapper]
        key: tuple[str, Any] = ("layer", wrapper.name)
        if target.global_id is not None:
            key = ("global", target.global_id)
        elif target.dependency_id is not None:
            key = ("dependency", target.dependency_id)
        groups.setdefault(key, []).append(wrapper)
    return groups


def _choose(
    scores: Mapping[Any, Tensor], known: Mapping[Any, Target], share: float | None
) -> dict[Any, Tensor]:
    first = next(iter(known.values()))
    if first.global_id is not None:
        return _choose_globally(scores, known, share or 0.0)
    if first.dependency_id is not None:
        return _choose_alike(scores, known, share or 0.0)
    ((wrapper, score),) = scores.items()
    if first.threshold is not None:
        share = float((score < first.threshold).float().mean())
    return {wrapper: _lowest(score, _bounded(share or 0.0, first), first.blocks)}


def _bounded(share: float, target: Target) -> float:
    return min(max(share, target.least), target.most)


def _lowest(score: Tensor, share: float, blocks: int = 1) -> Tensor:
    """Return the kept blocks if the same share of each part is removed; at least one is kept."""
    if score.numel() % blocks:
        raise ConfigError(
            f"'internal_metric_block' {blocks} does not divide {score.numel()} scores."
        )
    parts = score.reshape(blocks, -1)
    count = min(prune_count(parts.shape[1], share), parts.shape[1] - 1)
    kept = torch.stack([prune_smallest(part, count) for part in parts])
    return kept.reshape(score.shape)


def _choose_alike(
    scores: Mapping[Any, Tensor], known: Mapping[Any, Target], share: float
) -> dict[Any, Tensor]:
    """Remove the same positions from all layers: those with the smallest mean score."""
    sizes = {wrapper.name: score.numel() for wrapper, score in scores.items()}
    if len({*sizes.values()}) > 1:
        raise ConfigError(
            f"'dependency_group_id': its layers have different numbers of positions: {sizes}."
        )
    mean = torch.stack([score.flatten() for score in scores.values()]).mean(0)
    blocks = math.lcm(*(target.blocks for target in known.values()))
    share = _bounded(share, next(iter(known.values())))
    keep = _lowest(mean, share, blocks)
    return {wrapper: keep.reshape(score.shape) for wrapper, score in scores.items()}


def _choose_globally(
    scores: Mapping[Any, Tensor], known: Mapping[Any, Target], share: float
) -> dict[Any, Tensor]:
    """Remove a share of all weights of the group, by unscaled scores, within each layer's bounds."""
    wrappers = list(scores)
    grain = [w.weight.numel() // scores[w].numel() for w in wrappers]
    total = prune_count(sum(w.weight.numel() for w in wrappers), share)
    counts = [prune_count(scores[w].numel(), known[w].least) for w in wrappers]
    caps = [
        min(prune_count(scores[w].numel(), known[w].most), scores[w].numel() - 1) for w in wrappers
    ]
    order = [
        (value, i)
        for i, w in enumerate(wrappers)
        for value in scores[w].flatten().sort().values.tolist()[counts[i] :]
    ]
    left = total - sum(n * size for n, size in zip(counts, grain, strict=True))
    for _, i in sorted(order):
        if counts[i] >= caps[i]:
            continue
        if grain[i] > left:
            break
        counts[i] += 1
        left -= grain[i]
    return {w: prune_smallest(scores[w], n) for w, n in zip(wrappers, counts, strict=True)}


def _followed(
    wrapper: Any, target: Target, masks: Mapping[Any, Tensor], known: Mapping[Any, Target]
) -> dict[Any, Tensor]:
    """Return the mask of a layer that follows another one's output channels."""
    source = next((w for w in known if w.name == target.align), None)
    if source is None:
        raise ConfigError(
            f"layer {wrapper.name!r}: 'align' names {target.align!r}, which this pruner does not prune."
        )
    mask = masks.get(source, source.weight_mask)
    kept = (mask.flatten(1).amax(1) if mask.dim() > 1 else mask) > 0
    if kept.numel() != wrapper.weight.shape[0]:
        raise ConfigError(
            f"layer {wrapper.name!r} has {wrapper.weight.shape[0]} channels, {target.align!r} has "
            f"{kept.numel()}; 'align' needs as many."
        )
    shaped = kept.reshape(-1, *[1] * (wrapper.weight.dim() - 1))
    return {wrapper: shaped.expand_as(wrapper.weight).to(wrapper.weight.dtype)}


def _answer(wrapper: Any, mask: Tensor, target: Target) -> dict[str, Tensor]:
    """Return the masks of a layer: a bias is masked where all of its weights are."""
    answer = {"weight_mask": mask} if "weight" in target.masked else {}
    bias = getattr(wrapper.module, "bias", None)
    if "bias" in target.masked and isinstance(bias, Tensor):
        rows = mask.flatten(1).amax(1) if mask.dim() > 1 else mask
        if rows.numel() == bias.numel():
            answer["bias_mask"] = rows.to(bias.dtype)
    return answer
