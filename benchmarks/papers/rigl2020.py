"""Evci et al. 2020, "Rigging the lottery": sparse from the first step, with connections that move.

    ./run python benchmarks/reproduce.py rigl2020

LeNet-300-100 from the start, no teacher, as many epochs as the dense network. As in the paper, 99 % of the
first layer and 89 % of the second are zero, and the last is dense. Beside it, connections that stay where
they were drawn. The paper trains for longer, and counts 4 bytes for each weight and a mask of the kept
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lilliput.torch import RandomPruner, RigLPruner
from papers.harness import Budget, Paper, Row, Task, sparse_figures
from papers.networks import lenet_300_100

RULES = [{"op_names": ["1"], "sparsity": 0.99}, {"op_names": ["3"], "sparsity": 0.89}]


def from_the_start(moves: bool) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function: train a sparse network."""

    def run(task: Task) -> dict[str, Any]:
        torch.manual_seed(task.seed)
        model = lenet_300_100()
        optimizer = torch.optim.Adam(model.parameters(), task.budget.dense_rate, fused=True)
        epochs = task.budget.dense_epochs
        steps = epochs * (len(task.train_set[1]) // task.budget.batch)
        if moves:
            RigLPruner(model, RULES, optimizer, steps, seed=task.seed).compress()
        else:
            RandomPruner(model, RULES, optimizer, seed=task.seed).compress()
        task.train(model, optimizer, epochs)
        return {"error": task.error(model)} | sparse_figures(model)

    return run


PAPER = Paper(
    "rigl2020",
    "Evci et al. 2020, Rigging the lottery",
    {
        "RigL": Row(from_the_start(True), {"error": 1.69, "bytes": 16_100}),
        "connections that do not move": Row(from_the_start(False), {"claim": "worse"}),
    },
    budget=Budget(epochs=0, rate=0),
    about="The dense network is the control: the sparse ones train for as many epochs.",
)
