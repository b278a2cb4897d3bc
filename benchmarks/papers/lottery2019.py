"""Frankle & Carbin 2019, "The lottery ticket hypothesis": pruned networks learn as well if rewound.

    ./run python benchmarks/reproduce.py lottery2019

LeNet-300-100 from the start, no teacher: rounds of training, after each of which 20 % of the weights that are
left are removed, and the others set back to their first values. The control of a ticket is the same mask
with the first values of another seed: the paper's point is that it learns worse. The paper's tickets of 21 %
of the weights beat the dense network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lilliput.torch import LevelPruner, LotteryTicketPruner
from papers.harness import TICKS, Budget, Paper, Row, Task, sparse_figures
from papers.networks import lenet_300_100

EPOCHS = 2  # of each round


def ticket(task: Task, sparsity: float) -> nn.Module:
    """Return a network with the zeros of a ticket, trained for the last round."""

    def make() -> nn.Module:
        model = lenet_300_100()
        optimizer = torch.optim.Adam(model.parameters(), task.budget.dense_rate, fused=True)
        rule = {"op_types": ["Linear"], "sparsity": sparsity}
        pruner = LotteryTicketPruner(model, [rule], optimizer, epochs_per_round=EPOCHS * TICKS)
        pruner.compress()
        rounds = pruner.epochs // (EPOCHS * TICKS)
        for number in range(rounds):
            first = number * EPOCHS * TICKS
            for group in optimizer.param_groups:
                group["lr"] = task.budget.dense_rate
            task.train(
                model,
                optimizer,
                EPOCHS,
                on_tick=lambda tick, first=first: pruner.update_epoch(first + tick),
            )
        stripped: nn.Module = pruner.strip()
        return stripped

    return task.kept("ticket", [task.budget.dense_rate, EPOCHS, sparsity], make)[0]


def trained_again(sparsity: float, seed_offset: int) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function: the ticket's mask, from its own first values or from others."""

    def run(task: Task) -> dict[str, Any]:
        masked = ticket(task, sparsity)
        torch.manual_seed(task.seed + seed_offset)
        model = lenet_300_100()
        with torch.no_grad():
            for layer, other in zip(model, masked, strict=True):
                if isinstance(layer, nn.Linear):
                    layer.weight.mul_(other.weight != 0)
        optimizer = torch.optim.Adam(model.parameters(), task.budget.dense_rate, fused=True)
        rules = [{"op_types": ["Linear"], "sparsity": sparsity}]
        LevelPruner(model, rules, optimizer).compress()
        task.train(model, optimizer, task.budget.dense_epochs)
        return {"error": task.error(model)} | sparse_figures(model)

    return run


PAPER = Paper(
    "lottery2019",
    "Frankle & Carbin 2019, The lottery ticket hypothesis",
    {
        "21 % kept, ticket": Row(trained_again(0.79, 0), {"claim": "better than dense"}),
        "21 % kept, other first weights": Row(trained_again(0.79, 1000), {"claim": "worse"}),
        "3.6 % kept, ticket": Row(trained_again(0.964, 0), {"claim": "as good as dense"}),
        "3.6 % kept, other first weights": Row(trained_again(0.964, 1000), {"claim": "worse"}),
    },
    budget=Budget(epochs=0, rate=0),
    about="The dense network is the control: a ticket trains for as many epochs.",
)
