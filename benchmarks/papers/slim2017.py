"""Liu et al. 2017, "Network slimming": neurons whose batch norm scales them to nothing are cut out.

    ./run python benchmarks/reproduce.py slim2017

The paper's network of 784-500-300-10 with batch norms trains under the penalty for a third of the epochs, is
pruned, and trains on. Judged is the network that was cut. In the paper it loses 84.4 % of its parameters, and
its error on MNIST goes from 1.43 to 1.53 %.
"""

from __future__ import annotations

from typing import Any

from torch import nn, optim

from lilliput.torch import SlimPruner, speedup
from papers.harness import Budget, Paper, Row, Task, sparse_figures

KEPT = 1 - 0.844  # of the parameters


def slimmed(task: Task) -> dict[str, Any]:
    """Prune the neurons with the smallest scales until the share is met, and cut them out."""
    example = task.train_set[0][:2]

    def attach(model: nn.Module, optimizer: optim.Optimizer) -> SlimPruner:
        pruner = SlimPruner(
            model,
            [{"max_params": KEPT}],
            optimizer,
            example,
            training_epochs=task.budget.ticks // 3,
            scale=1e-4,
        )
        pruner.compress()
        return pruner

    model, _ = task.retrain(attach)
    cut = speedup(model.eval(), example).model
    return {"error": task.error(cut)} | sparse_figures(cut, of=task.dense())


PAPER = Paper(
    "slim2017",
    "Liu et al. 2017, Network slimming",
    {
        "84.4 % of the parameters cut": Row(
            slimmed,
            {"error": 1.53, "rate": 6.4, "reference": 1.43},
            above_control=0.10,
            note="a first run of seed 0 removed 72 % of the neurons of a network of 300-100: 4.33 %, with "
            "23 times fewer weights, as nearly all of them were neurons of the first layer.",
        )
    },
    network="normed-mlp",
    budget=Budget(epochs=9, rate=2e-3),
    about="Neurons are cut out of a network of 784-500-300-10, as in the paper.",
)
