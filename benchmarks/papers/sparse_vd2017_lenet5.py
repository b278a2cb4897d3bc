"""Molchanov et al. 2017, "Variational dropout sparsifies deep neural networks": LeNet-5 with 1,532 weights.

    ./run python benchmarks/reproduce.py sparse_vd2017_lenet5

The authors' network has a ReLU after each convolution; Caffe's, in sparsest2017_lenet5.py, has none. As
there, most channels are cut out first, untrained, and the images are moved by up to one pixel. What is left
is pruned on AGP's schedule, all layers together, by how much a weight matters to the training loss. In that
loss, the labels count more than in the other tables.
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
WIDTHS = ((8, 20), (20, 50), (60, 500))  # channels that are left, and had been there
SEEN = 100  # batches of about 110 between two updates of the masks
TRIED = (
    "a first run of seed 0 ranked weights by LAMP, at a learning rate of 0.012 and with a weight of 0.1 for "
    "the labels: 0.86 %. The settings were then chosen on the validation images, seed 0, in 12 epochs from "
    "10, 24 and 100 channels. LAMP: 1.20 % at 0.004, 1.10 % at 0.012. Fisher: 1.18 % at 0.004, 1.02 % at "
    "0.008, 1.04 % at 0.016; 1.00 % at 0.008 with a weight of 3 for the labels; 1.32 % at 0.004 with all "
    "channels. Dense: 0.58 %. On the test images that gave 0.82 ± 0.05 % (3 seeds), and the bar was missed. "
    "So more was tried on the validation images, in 20 epochs, where these settings have 1.18 %: an end of "
    "the pruning at 0.4 or 0.8 of the training instead of 0.6, 1.06 and 1.00 %; images moved by up to two "
    "pixels, 1.08 to 1.14 % with four settings; a weight of 0.5 for the labels, 1.02 %; a start after a "
    "fifth of the training, 1.14 %; soft thresholds, 1.10 %; 100 × first, 1.02 % after 40 epochs; 6, 14 and "
    "40 channels, 1.00 %; 8, 20 and 60 channels, 0.94 %, which are those of this table. One standard error "
    "is 0.14 there."
)


def attach(task: Task, model: nn.Module, optimizer: optim.Optimizer) -> AGPPruner:
    """Prune all layers together, until a share of the dense network's weights is left."""
    dense, left = (
        sum(weight.numel() for weight in weights_of(net)) for net in (task.dense(), model)
    )
    rule = {"total_sparsity": 1 - dense / RATE / left, "end_epoch": int(0.6 * task.budget.ticks)}
    params = {"training_batches": SEEN}
    pruner = AGPPruner(model, [rule], optimizer, "fisher", pruning_params=params)
    pruner.compress()
    return pruner


def pruned(task: Task) -> dict[str, Any]:
    """Return the figures of the pruned network."""
    model = task.retrain(partial(attach, task), cut(task, WIDTHS))[1].strip()
    return {"error": task.error(model)} | sparse_figures(model, of=task.dense())


PAPER = Paper(
    "sparse_vd2017_lenet5",
    "Molchanov et al. 2017, on their LeNet-5",
    {"280 ×": Row(pruned, {"error": 0.75, "rate": 280}, most=0.80, note=TRIED)},
    network="rectified-lenet-5",
    budget=replace(CAFFE.budget, rate=8e-3, labels=3.0),
    seeds=3,
    about="Cut to 8, 20 and 60 channels, then pruned weight by weight, all layers together; images are "
    "moved by up to one pixel.",
)
