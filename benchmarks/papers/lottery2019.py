"""Frankle & Carbin 2019, "The lottery ticket hypothesis": pruned networks learn as well if rewound.

    ./run python benchmarks/reproduce.py lottery2019

LeNet-300-100 from the start, no teacher: rounds of training, after each of which 20 % of the weights that are
left are removed (10 % in the last layer), and the others set back to their first values. The control of a
ticket is the same mask with the first values of another seed: the paper's point is that it learns worse. As
in the paper, first values are Glorot's, and Adam starts with a rate of 1.2e-3; here it falls on a cosine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lilliput.torch import LevelPruner, LotteryTicketPruner
from papers.harness import Budget, Paper, Row, Task, sparse_figures
from papers.networks import glorot_lenet_300_100

EPOCHS = 10  # of each round
LEFT = {"1": 0.8, "3": 0.8, "5": 0.9}  # of the weights of a layer, by each round
HALFWAY, LAST = 7, 15  # rounds after which a ticket is trained


def ticket(task: Task, rounds: int) -> nn.Module:
    """Return the first weights of a seed, without those that were pruned in some rounds."""
    before = HALFWAY if rounds > HALFWAY else 0

    def make() -> nn.Module:
        model = ticket(task, before) if before else glorot_lenet_300_100()
        optimizer = torch.optim.Adam(model.parameters(), task.budget.dense_rate, fused=True)
        rules = [
            {"op_names": [name], "sparsity": 1 - left**rounds, "prune_iterations": rounds}
            for name, left in LEFT.items()
        ]
        pruner = LotteryTicketPruner(model, rules, optimizer, epochs_per_round=EPOCHS)
        pruner.compress()
        pruner.update_epoch(before * EPOCHS)
        for number in range(before, rounds):
            for group in optimizer.param_groups:
                group["lr"] = task.budget.dense_rate
            task.train(model, optimizer, EPOCHS)
            pruner.update_epoch((number + 1) * EPOCHS)
        stripped: nn.Module = pruner.strip()
        return stripped

    settings = [task.budget.dense_rate, EPOCHS, rounds, LEFT, before]
    return task.kept("ticket", settings, make, glorot_lenet_300_100)[0]


def trained(rounds: int, is_ticket: bool) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function: a ticket is trained, or other first values with its mask."""

    def run(task: Task) -> dict[str, Any]:
        model = ticket(task, rounds)
        masks = {name: model.get_submodule(name).weight != 0 for name in LEFT}
        if not is_ticket:
            torch.manual_seed(task.seed + 1000)
            model = glorot_lenet_300_100()
        with torch.no_grad():
            for name, mask in masks.items():
                model.get_submodule(name).weight.mul_(mask)
        rules = [
            {"op_names": [name], "sparsity": 1 - float(mask.float().mean())}
            for name, mask in masks.items()
        ]
        optimizer = torch.optim.Adam(model.parameters(), task.budget.dense_rate, fused=True)
        LevelPruner(model, rules, optimizer).compress()
        task.train(model, optimizer, task.budget.dense_epochs)
        return {"error": task.error(model)} | sparse_figures(model)

    return run


PAPER = Paper(
    "lottery2019",
    "Frankle & Carbin 2019, The lottery ticket hypothesis",
    {
        "21 % kept, ticket": Row(
            trained(HALFWAY, True),
            {"claim": "better than dense"},
            note="a first run of seed 0 had rounds of 2 epochs and PyTorch's first values, which are "
            "smaller: 1.83 %, and 1.77 % with others.",
        ),
        "21 % kept, other first values": Row(trained(HALFWAY, False), {"claim": "worse"}),
        "3.6 % kept, ticket": Row(trained(LAST, True), {"claim": "as good as dense"}),
        "3.6 % kept, other first values": Row(trained(LAST, False), {"claim": "worse"}),
    },
    network="glorot-lenet-300-100",
    budget=Budget(dense_rate=1.2e-3, epochs=0, rate=0),
    about="The dense network is the control: a ticket trains for as many epochs.",
)
