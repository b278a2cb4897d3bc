"""Zhu & Gupta 2017, "To prune, or not to prune": a large sparse network beats a small dense one.

    ./run python benchmarks/reproduce.py zhu_gupta2017

LeNet-300-100 is pruned on the paper's cubic schedule. Beside it, dense networks with as many weights as are
left are trained from the start, for as many epochs in all, by the same teacher. The paper has other
networks: MobileNet at 50 and 90 % zeros against the dense MobileNets of 0.75 and 0.25 times the width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lilliput.torch import AGPPruner
from papers.harness import Budget, Paper, Row, Task, sparse_figures


def large_sparse(sparsity: float) -> Any:
    """Return a row's function: prune all layers alike."""

    def run(task: Task) -> dict[str, Any]:
        def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> AGPPruner:
            rule = {"final_sparsity": sparsity, "end_epoch": int(0.6 * task.budget.ticks)}
            pruner = AGPPruner(model, [{"op_types": ["Linear"], **rule}], optimizer)
            pruner.compress()
            return pruner

        model, _ = task.retrain(attach)
        return {"error": task.error(model)} | sparse_figures(model)

    return run


def small_dense(first: int, second: int) -> Any:
    """Return a row's function: train a network with narrower hidden layers."""

    def run(task: Task) -> dict[str, Any]:
        torch.manual_seed(task.seed)
        hidden = (nn.Linear(784, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU())
        model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(second, 10))
        optimizer = torch.optim.Adam(model.parameters(), task.budget.dense_rate)
        task.train(model, optimizer, task.budget.dense_epochs)
        model, _ = task.retrain(None, model)
        return {"error": task.error(model)} | sparse_figures(model, of=task.dense())

    return run


PAPER = Paper(
    "zhu_gupta2017",
    "Zhu & Gupta 2017, To prune, or not to prune",
    {
        "large-sparse, 90 % zeros": Row(large_sparse(0.90), {"claim": "better than small-dense"}),
        "small-dense, 33-11": Row(small_dense(33, 11)),
        "large-sparse, 97.5 % zeros": Row(
            large_sparse(0.975), {"claim": "better than small-dense"}
        ),
        "small-dense, 8-5": Row(small_dense(8, 5)),
    },
    budget=Budget(epochs=10),
    about="Small-dense networks have as many weights as the sparse one above them, "
    "and the same epochs and teacher.",
)
