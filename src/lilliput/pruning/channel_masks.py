"""From the scores of layers to masks of all parameters that share their channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.core.masker import Answers
from lilliput.errors import Problem
from lilliput.graph.collect import find_groups
from lilliput.ops.channels import channel_rows
from lilliput.ops.masks import prune_count
from lilliput.ops.namespace import namespace
from lilliput.pruning.layout import Flags, Layout, Pruned
from lilliput.pruning.ranking import Candidates, Removed, take_share, take_until
from lilliput.pruning.untraced import UntracedLayers

_BUDGETS = {"max_macs": "count_macs", "max_params": "count_parameters"}


def lay_out(pruner: Any, selection: Selection, obstacle: Callable[[LayerInfo], str]) -> Layout:
    """Return which groups the selected layers prune, using the channel groups of the pruner's model."""
    groups = pruner.given_groups
    if groups is None:
        groups = _find_groups(pruner)
    if groups is None:
        missing = _find_budgets(selection)
        if missing:
            selection = replace(selection, problems=(*selection.problems, *missing))
        layers = [d.layer for d in selection.decisions if d.rule is not None]
        groups = UntracedLayers(layers)
    parameters = pruner._backend.parameters(pruner.bound_model)
    filters_only = getattr(pruner, "filters_only", False)  # a schedule may use any masker
    reads_weights = getattr(pruner.masker_type, "reads_weights", False)
    layout = Layout(groups, selection, parameters, obstacle, filters_only, reads_weights)
    layout.selection = replace(
        layout.selection, problems=(*selection.problems, *layout.selection.problems)
    )
    return layout


def _find_groups(pruner: Any) -> Any:
    """Return the channel groups of the pruner's model, or None if they cannot be determined."""
    backend, model, inputs = pruner._backend, pruner.bound_model, pruner.example_inputs
    if inputs is None and backend.needs_example(model):
        return None
    return find_groups(backend.graph(model, inputs))


def find_masks(masker: Any, pruner: Any, asked: Mapping[Any, float | None]) -> Answers:
    """Return the masks of every wrapper of the pruner after pruning the requested wrappers."""
    layout: Layout = pruner.layout
    wrappers = {wrapper.name: wrapper for wrapper in pruner.get_modules_wrapper()}
    sparsities = {wrapper.name: sparsity for wrapper, sparsity in asked.items()}
    due = [each for each in layout.pruned if _asks(each, sparsities)]
    scores = masker.unit_scores(due, wrappers)

    removed = removed_units(pruner)
    removed |= _choose(due, sparsities, scores, removed, layout.groups, masker.scores_compare)
    return _answers(pruner, {**wrappers, **{w.name: w for w in pruner.companions()}}, removed)


def removed_units(pruner: Any) -> Removed:
    """Return which units of each group the masks of a pruner currently remove."""
    wrappers = {wrapper.name: wrapper for wrapper in pruner.get_modules_wrapper()}

    def alive(layer: LayerInfo) -> Flags:
        mask = wrappers[layer.name].weight_mask
        xp = namespace(mask)
        rows = channel_rows(mask, layer.out_axis, layer.out_groups)
        flags: Flags = xp.to_numpy(xp.sum(rows, axis=1)) > 0
        return flags

    return {each.group.name: each.removed(alive) for each in pruner.layout.pruned}


def _asks(pruned: Pruned, sparsities: Mapping[str, float | None]) -> bool:
    return any(member.layer.name in sparsities for member in pruned.members)


def _choose(
    due: list[Pruned],
    sparsities: Mapping[str, float | None],
    scores: Mapping[str, Any],
    before: Removed,
    groups: Any,
    scores_compare: bool,
) -> Removed:
    """Return the units to remove from each group, by its own sparsity or by a joint target."""
    removed: Removed = {}
    joint: list[tuple[dict[str, Any], list[Candidates]]] = []
    for each in due:
        asked = [m for m in each.members if m.layer.name in sparsities]
        # The smallest sparsity wins; a joint target has none of its own and takes precedence.
        first = min(asked, key=lambda m: sparsities[m.layer.name] or 0)
        config, sparsity = first.layer.config, sparsities[first.layer.name]
        group = Candidates(
            each.group.name,
            scores[each.group.name],
            before[each.group.name],
            each.group.rows,
            each.channels,
            max(m.layer.config.get("min_kept", 1) for m in asked),
            math.lcm(*(m.layer.config.get("round_to", 1) for m in asked)),
            config.get("max_sparsity_per_layer"),
            each.group.stage,
            scores_compare,
        )
        if sparsity is not None:
            removed[group.name] = group.take(group.limit(prune_count(group.size, sparsity)))
            continue
        known = next((entry for entry in joint if entry[0] == config), None)
        if known is None:
            joint.append((config, [group]))
        else:
            known[1].append(group)
    for config, candidates in joint:
        removed |= _meet(config, candidates, {**before, **removed}, groups)
    return removed


def _meet(
    config: Mapping[str, Any], candidates: list[Candidates], others: Removed, groups: Any
) -> Removed:
    """Remove channels of several groups together until the target of their rule is met."""
    if "total_sparsity" in config:
        return take_share(candidates, config["total_sparsity"])
    key = next(key for key in _BUDGETS if key in config)
    count = getattr(groups, _BUDGETS[key])
    if candidates[0].scores_compare:
        candidates = [_priced(group, count) for group in candidates]
    return take_until(candidates, config[key], count, key, others)


def _priced(group: Candidates, count: Callable[..., int]) -> Candidates:
    """Return a group with its scores divided by the multiplications or parameters that a unit saves."""
    saved = count({}) - count({group.name: np.arange(group.size) == 0})
    return replace(group, scores=group.scores / max(saved, 1))


def _answers(pruner: Any, wrappers: Mapping[str, Any], removed: Removed) -> Answers:
    answers: dict[str, dict[str, Any]] = {}
    for (name, key), keep in pruner.layout.masks(removed).items():
        wrapper = wrappers[name]
        if getattr(wrapper, key) is None and bool(np.all(keep)):
            continue  # a bias that loses nothing needs no mask
        answers.setdefault(name, {})[key] = pruner._backend.to_mask(keep, wrapper)
    return [(wrappers[name], masks) for name, masks in answers.items()]


def _find_budgets(selection: Selection) -> list[Problem]:
    """Return a problem for each rule with a budget, which requires traced channels."""
    found = {
        (decision.rule, key): Problem(
            f"rule {decision.rule} → {key}",
            "a budget applies to the whole model: pass example_inputs to the pruner.",
        )
        for decision in selection.decisions
        for key in _BUDGETS
        if decision.is_chosen and key in decision.layer.config
    }
    return list(found.values())
