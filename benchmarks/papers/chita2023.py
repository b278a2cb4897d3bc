"""Benbaki et al. 2023, CHITA: 90 % of the weights of ResNet-20 removed at once, without training.

    ./run python benchmarks/reproduce.py chita2023

Magnitude against second-order pruning, which is shown 1,000 training images without labels; magnitude also
with batch norms that are re-estimated on these images. Every layer loses the same share, or the shares are
chosen for the whole network. A seed draws the images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.torch import LevelPruner, SecondOrderPruner, recalibrate
from papers.harness import Paper, Row, Task, sparse_figures
from papers.st3_2023 import PAPER as ST3

SPARSITY, SEEN = 0.9, 1000
MAGNITUDE, SECOND = "magnitude", "second order"
EVERYWHERE = "magnitude, all layers together"
SECOND_EVERYWHERE = "second order, all layers together"


def magnitude(model: nn.Module, rules: Any, _: list[Tensor]) -> nn.Module:
    pruned: nn.Module = LevelPruner(model, rules).compress()
    return pruned


def renormalised(model: nn.Module, rules: Any, batches: list[Tensor]) -> nn.Module:
    """Prune by magnitude, and estimate the statistics of batch norms again."""
    original = copy.deepcopy(model)
    pruned: nn.Module = LevelPruner(model, rules).compress()
    recalibrate(pruned, batches, original=original)
    return pruned


def second_order(model: nn.Module, rules: Any, batches: list[Tensor]) -> nn.Module:
    pruner = SecondOrderPruner(model, rules)
    pruner.calibrate(batches)
    pruned: nn.Module = pruner.compress()
    return pruned


def at_once(prune: Callable[..., nn.Module], key: str) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function."""

    def run(task: Task) -> dict[str, Any]:
        images = task.train_set[0]
        generator = torch.Generator().manual_seed(task.seed)
        drawn = images[torch.randperm(len(images), generator=generator)[:SEEN]]
        rules = [{"op_types": ["Conv2d", "Linear"], key: SPARSITY}]
        model = prune(task.dense().eval(), rules, list(drawn.split(100)))
        return {"error": task.error(model)} | sparse_figures(model)

    return run


def keeps_half(ours: str, magnitudes: str) -> Callable[[dict[str, float]], tuple[str, bool]]:
    """Return the bar: at most half of the accuracy that magnitude pruning loses is lost."""

    def bar(means: dict[str, float]) -> tuple[str, bool]:
        lost, reference = (means[name] - means["dense"] for name in (ours, magnitudes))
        text = f"loses ≤ half of what magnitude does ({lost:.2f} of {reference:.2f} points)"
        return text, 2 * lost <= reference

    return bar


PAPER = Paper(
    "chita2023",
    "Benbaki et al. 2023, CHITA: one-shot pruning of ResNet-20",
    {
        MAGNITUDE: Row(at_once(magnitude, "sparsity")),
        SECOND: Row(at_once(second_order, "sparsity"), bar=keeps_half(SECOND, MAGNITUDE)),
        "magnitude, norms re-estimated": Row(at_once(renormalised, "sparsity")),
        EVERYWHERE: Row(at_once(magnitude, "total_sparsity")),
        f"{EVERYWHERE}, norms re-estimated": Row(at_once(renormalised, "total_sparsity")),
        SECOND_EVERYWHERE: Row(
            at_once(second_order, "total_sparsity"), bar=keeps_half(SECOND_EVERYWHERE, EVERYWHERE)
        ),
    },
    network=ST3.network,
    data=ST3.data,
    budget=replace(ST3.budget, epochs=0, rate=0),
    seeds=3,
    about="90 % of the weights are removed at once; nothing is trained.",
)
