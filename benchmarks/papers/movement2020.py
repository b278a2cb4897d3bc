"""Sanh et al. 2020, "Movement pruning": which weights to keep when a network learns another task.

    ./run python benchmarks/reproduce.py movement2020

LeNet-300-100, trained on MNIST, is fine-tuned to Fashion-MNIST while it is pruned, by how weights move or by
how large they are; a network trained on Fashion-MNIST teaches it, as the paper's does. The paper fine-tunes
BERT to SQuAD with 3 % of the weights: an F1 of 82.3 by soft movement, 59.6 by magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn, optim

from lilliput.torch import AGPPruner, MovementPruner
from papers.datasets import load
from papers.harness import Budget, Paper, Row, Task, sparse_figures

SPARSITY = 0.97


def pretrained(task: Task) -> nn.Module:
    """Return the network of this seed that was trained on MNIST."""
    others = Paper("mnist", "", {}, budget=task.budget)
    return others.task(load("mnist"), task.seed, task.is_valid).dense()


def fine_tuned(by_movement: bool) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function."""

    def run(task: Task) -> dict[str, Any]:
        budget = task.budget
        steps = budget.epochs * (len(task.train_set[1]) // budget.batch)

        def attach(model: nn.Module, optimizer: optim.Optimizer) -> Any:
            if by_movement:
                rule = {"op_types": ["Linear"], "sparsity": SPARSITY}
                pruner: Any = MovementPruner(model, [rule], optimizer, 0, int(0.6 * steps))
            else:
                rule = {"op_types": ["Linear"], "final_sparsity": SPARSITY}
                rule["end_epoch"] = int(0.6 * budget.ticks)
                pruner = AGPPruner(model, [rule], optimizer)
            pruner.compress()
            return pruner

        model = task.retrain(attach, pretrained(task))[1].strip()
        return {"error": task.error(model)} | sparse_figures(model)

    return run


PAPER = Paper(
    "movement2020",
    "Sanh et al. 2020, Movement pruning",
    {
        "3 % kept, by movement": Row(fine_tuned(True), {"claim": "BERT: F1 82.3"}),
        "3 % kept, by magnitude": Row(fine_tuned(False), {"claim": "BERT: F1 59.6"}),
    },
    data="fashion-mnist",
    budget=Budget(epochs=9, rate=2e-3),
    about="Dense and control are trained on Fashion-MNIST from the start; the pruned ones on MNIST first.",
)
