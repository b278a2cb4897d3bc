"""Molchanov et al. 2017, "Variational dropout sparsifies deep neural networks": LeNet-5 with 280 × fewer weights.

    ./run python benchmarks/reproduce.py sparse_vd2017_lenet5

The authors' network has a ReLU after each convolution, which Caffe's does not have: that of
sparsest2017_lenet5.py. As there, most channels are cut out first, untrained, and the images are moved by up
to one pixel. What is left is pruned on AGP's schedule, all layers together, by LAMP's scores.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn, optim

from lilliput.torch import AGPPruner
from papers.harness import Paper, Row, Task, sparse_figures, weights_of
from papers.sparsest2017_lenet5 import PAPER as CAFFE
from papers.sparsest2017_lenet5 import cut

RATE = 281


def attach(task: Task, model: nn.Module, optimizer: optim.Optimizer) -> AGPPruner:
    """Prune all layers together, until a share of the dense network's weights is left."""
    dense, left = (
        sum(weight.numel() for weight in weights_of(net)) for net in (task.dense(), model)
    )
    rule = {"total_sparsity": 1 - dense / RATE / left, "end_epoch": int(0.6 * task.budget.ticks)}
    pruner = AGPPruner(model, [rule], optimizer, "lamp")
    pruner.compress()
    return pruner


def pruned(task: Task) -> dict[str, Any]:
    """Return the figures of the pruned network."""
    model = task.retrain(partial(attach, task), cut(task))[1].strip()
    return {"error": task.error(model)} | sparse_figures(model, of=task.dense())


PAPER = Paper(
    "sparse_vd2017_lenet5",
    "Molchanov et al. 2017, on their LeNet-5",
    {"280 ×": Row(pruned, {"error": 0.75, "rate": 280}, most=0.80)},
    network="rectified-lenet-5",
    budget=replace(CAFFE.budget, rate=1.2e-2),
    seeds=3,
    about="Cut to 10, 24 and 100 channels, then pruned weight by weight, all layers together; images are "
    "moved by up to one pixel.",
)
