"""Molchanov et al. 2019, "Importance estimation for neural network pruning": gradient times weight.

    ./run python benchmarks/reproduce.py taylor2019

Half of the neurons of each hidden layer of LeNet-300-100 are removed at once, by the criterion or by the L1
norm of their weights; the network trains on and is cut. The paper has ResNet-101: 40 % fewer operations cost
0.02 point of top-1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn, optim
from torch.nn import functional as F

from lilliput.torch import L1NormPruner, TaylorFOWeightPruner, speedup
from papers.harness import Budget, Paper, Row, Task, sparse_figures

RULES = [{"op_names": ["1", "3"], "sparsity": 0.5}]
IMAGES = 10_240  # to estimate the importance from


def cut(by_gradients: bool) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function."""

    def run(task: Task) -> dict[str, Any]:
        images, labels = task.train_set
        example = images[:2]

        def attach(model: nn.Module, optimizer: optim.Optimizer) -> None:
            if not by_gradients:
                L1NormPruner(model, RULES, optimizer, example).compress()
                return
            pruner = TaylorFOWeightPruner(model, RULES, optimizer, example)
            batches = zip(images[:IMAGES].split(128), labels[:IMAGES].split(128), strict=True)
            pruner.compress()
            pruner.calibrate(batches, loss=lambda net, pair: F.cross_entropy(net(pair[0]), pair[1]))

        model, _ = task.retrain(attach)
        small = speedup(model.eval(), example).model
        return {"error": task.error(small)} | sparse_figures(small, of=task.dense())

    return run


PAPER = Paper(
    "taylor2019",
    "Molchanov et al. 2019, Importance estimation for neural network pruning",
    {
        "half of the neurons, Taylor": Row(
            cut(True), {"claim": "ResNet-101: 77.35 from 77.37 %"}, above_control=0.10
        ),
        "half of the neurons, L1": Row(cut(False)),
    },
    budget=Budget(epochs=9, rate=2e-3),
    about="Neurons are cut out.",
)
