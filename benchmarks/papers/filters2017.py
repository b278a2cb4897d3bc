"""Li et al. 2017, "Pruning filters for efficient ConvNets": half the MACs of ResNet-20 on CIFAR-10.

    ./run python benchmarks/reproduce.py filters2017

Channels are cut out of the dense network until half of the multiplications are left, by the criterion of the
paper (L1 norm) or by the error that remains after the layers that read them are refitted (least squares, on
1,000 images without labels); the cut network then trains with the dense one as teacher. The error is that of
the exported file, as ONNX Runtime executes it. The paper has ResNet-56: 6.94 % from 6.96 % with 72 % of the
MACs.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from timing import macs
from torch import Tensor, nn

from lilliput.torch import (
    L1NormPruner,
    LeastSquaresPruner,
    export_onnx,
    open_file,
    reconstruct,
    speedup,
)
from papers.harness import Paper, Row, Task, sparse_figures
from papers.st3_2023 import PAPER as ST3

SHARE, SEEN = 0.5, 1000  # of the MACs; images
RULES = [{"op_types": ["Conv2d"], "max_macs": SHARE, "round_to": 4}]


def by_norm(model: nn.Module, example: Tensor, _: list[Tensor]) -> None:
    L1NormPruner(model, RULES, example_inputs=example).compress()


def by_least_squares(model: nn.Module, example: Tensor, batches: list[Tensor]) -> None:
    original = copy.deepcopy(model)
    pruner = LeastSquaresPruner(model, RULES, example_inputs=example)
    pruner.calibrate(batches)
    reconstruct(pruner.compress(), batches, original, progress=False)


def cut(prune: Callable[..., None]) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function: prune, cut, train, export, and measure the error of the file."""

    def run(task: Task) -> dict[str, Any]:
        images = task.train_set[0][:SEEN]
        model, example = task.dense().eval(), images[:100]
        before = macs(model, example)
        prune(model, example, list(images.split(100)))
        small = speedup(model, example).model
        untrained = task.error(small)
        small, _ = task.retrain(None, small)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cut.onnx"
            export_onnx(small.eval(), path, example)
            figures = {"error": task.error(open_file(path)), "untrained": untrained}
        share = macs(small, example) / before
        return figures | {"macs": share} | sparse_figures(small, of=task.dense())

    return run


PAPER = Paper(
    "filters2017",
    "Li et al. 2017, Pruning filters, on ResNet-20",
    {
        "half of the MACs, L1": Row(
            cut(by_norm), {"claim": "ResNet-56: 6.94 from 6.96 %"}, above_control=0.30
        ),
        "half of the MACs, least squares": Row(
            cut(by_least_squares),
            above_control=0.30,
            note="a first run had 4 epochs in place of 10, and any number of channels in place of multiples "
            "of 4: 13.03 % against 12.02 % of its control, 2 seeds.",
        ),
    },
    network=ST3.network,
    data=ST3.data,
    budget=replace(ST3.budget, epochs=10),
    seeds=3,
    about="Cut, trained with the dense network as teacher, and executed by ONNX Runtime.",
)
