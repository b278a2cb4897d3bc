"""Han et al. 2015, "Learning both weights and connections": a twelfth of LeNet-300-100 without loss.

    ./run python benchmarks/reproduce.py han2015

The paper prunes by magnitude and retrains; it keeps 8, 9 and 26 % of the weights of the three layers. Here
the same shares are approached on AGP's schedule, while the dense network teaches the pruned one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn, optim

from lilliput.torch import AGPPruner
from papers.harness import Budget, Paper, Row, Task, sparse_figures

KEPT = {  # shares of the layers' weights that the paper keeps
    "lenet-300-100": {"1": 0.08, "3": 0.09, "5": 0.26},
    "lenet-5": {"0": 0.66, "2": 0.12, "5": 0.08, "7": 0.19},
}


def papers_shares(network: str) -> tuple[float, ...]:
    """Return the shares that the paper keeps, in the order of the layers."""
    return tuple(KEPT[network].values())


def schedule(task: Task, kept: tuple[float, ...]) -> Callable[..., AGPPruner]:
    """Return what puts a pruner on a network: on AGP's schedule down to a share of each layer's weights."""
    is_first = task.budget.before is None

    def attach(model: nn.Module, optimizer: optim.Optimizer) -> AGPPruner:
        end = int(0.6 * task.budget.ticks)
        rules = [
            {
                "op_names": [name],
                "initial_sparsity": 0.0 if is_first else 1 - start,
                "final_sparsity": 1 - share,
                "end_epoch": end,
            }
            for (name, start), share in zip(KEPT[task.network].items(), kept, strict=True)
        ]
        pruner = AGPPruner(model, rules, optimizer)
        pruner.compress()
        return pruner

    return attach


def prune(task: Task, *kept: float) -> nn.Module:
    """Return the dense network pruned to a share of each layer's weights.

    Where the training follows another one, it starts with the network that has been pruned there as in the
    paper.
    """

    def make() -> nn.Module:
        is_first = task.budget.before is None
        student = task.dense() if is_first else prune(task.before(), *papers_shares(task.network))
        model: nn.Module = task.retrain(schedule(task, kept), student)[1].strip()
        return model

    return task.kept("agp", [task.budget.settings(), kept], make)[0]


def pruned(*kept: float) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function."""

    def run(task: Task) -> dict[str, Any]:
        model = prune(task, *kept)
        return {"error": task.error(model)} | sparse_figures(model)

    return run


def a_twelfth(network: str, error: float, reference: float) -> dict[str, Row]:
    """Return the row of the paper: a network with a twelfth of its weights, and its errors in percent."""
    figures = {"error": error, "rate": 12, "reference": reference}
    return {"12 ×": Row(pruned(*papers_shares(network)), figures, above_control=0.10)}


PAPER = Paper(
    "han2015",
    "Han et al. 2015, Learning both weights and connections",
    a_twelfth("lenet-300-100", error=1.59, reference=1.64),
    budget=Budget(epochs=20, rate=4e-3),
    about="The paper's shares of weights kept, on AGP's schedule with the dense network as teacher.",
)
