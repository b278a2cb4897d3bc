"""Vanderschueren & De Vleeschouwer 2023, ST-3: ResNet-20 on CIFAR-10 with 5 % of its weights.

    ./run python benchmarks/reproduce.py st3_2023

Soft thresholds with a straight-through gradient against AGP's masks, on the same cubic schedule and for as
many epochs; with the labels alone, with the dense network as the only teacher, and with both. The first
convolution and the classifier stay dense, as in AGP's paper, and 95 % of all weights are zero. The paper has
ResNet-50 on ImageNet at 90 %: 76.0 % top-1, against 73.9 % for gradual magnitude pruning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn, optim

from lilliput.torch import AGPPruner
from papers.harness import Budget, Paper, Row, Task, sparse_figures

SPARSITY = 0.9538  # of the layers that are pruned: 0.95 of all weights
MARGIN = 1.0  # points below AGP's error
AGP, ST3 = "AGP, labels", "ST-3, labels and teacher"


def pruned(soft: bool, labels: float, teacher: float) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function, given the weights of labels and teacher in the loss."""

    def run(task: Task) -> dict[str, Any]:
        def attach(model: nn.Module, optimizer: optim.Optimizer) -> AGPPruner:
            end = int(0.6 * task.budget.ticks)
            rules = [
                {"op_types": ["Conv2d"], "final_sparsity": SPARSITY, "end_epoch": end},
                {"op_names": ["0"], "exclude": True},
            ]
            pruner = AGPPruner(model, rules, optimizer, soft=soft)
            pruner.compress()
            return pruner

        model = task.retrain(attach, says=(labels, teacher))[1].strip()
        return {"error": task.error(model)} | sparse_figures(model)

    return run


def beats_agp(means: dict[str, float]) -> tuple[str, bool]:
    """Return the bar and whether it is met, given the mean errors of all rows."""
    gain = means[AGP] - means[ST3]
    return f"≤ AGP − {MARGIN:.1f} ({-gain:+.2f})", gain >= MARGIN


PAPER = Paper(
    "st3_2023",
    "Vanderschueren & De Vleeschouwer 2023, ST-3, on ResNet-20",
    {
        AGP: Row(pruned(False, 1.0, 0.0), {"claim": "ResNet-50: 73.9 %"}),
        ST3: Row(pruned(True, 0.1, 1.0), bar=beats_agp),
        "ST-3, labels": Row(pruned(True, 1.0, 0.0), {"claim": "ResNet-50: 76.0 %"}),
        "ST-3, teacher": Row(pruned(True, 0.0, 1.0)),
    },
    network="resnet-20",
    data="cifar-10",
    budget=Budget(dense_epochs=12, dense_rate=0.1, epochs=4, rate=0.05),
    seeds=3,
    about="95 % of the weights are zero, and all rows train equally long. One dense network for all seeds.",
)
