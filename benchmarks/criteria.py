"""Compare criteria for removing channels from trained networks: at equal MACs, without training.

    ./run python benchmarks/criteria.py                          # needs pip install '.[bench]'
    ./run python benchmarks/criteria.py --networks lite0 --criteria nothing Taylor   # keeps the others

EfficientNet-Lite0 and ResNet-50 lose channels and all-MiniLM-L6-v2 loses attention heads and neurons,
ranked over all layers until a share of the multiplications is left. Each pruned network is tested
unchanged, with its batch norms recalibrated, and reconstructed; no labels are used. ``nothing`` removes
nothing, and shows the effect of recalibrating alone, since these photos show fruit and the networks
were trained on 1000 classes. Photos are scored by the class of the float network, MiniLM by how often a
title finds its news. Latency is the CPU time of one example on one thread, alternating between the cut
network and the original.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from record import RESULTS, read_json, write_json
from retrieval import Retrieval, load_embedder
from runtime import all_outputs
from timing import call, latency_ratio
from torch import Tensor, nn
from trained_nets import CASES

from lilliput.torch import (
    ActivationMeanRankPruner,
    FPGMPruner,
    L1NormPruner,
    L2NormPruner,
    LeastSquaresPruner,
    TaylorFOWeightPruner,
    recalibrate,
    reconstruct,
    speedup,
)

CRITERIA: dict[str, Any] = {
    "L1": L1NormPruner,
    "L2": L2NormPruner,
    "FPGM": FPGMPruner,
    "Taylor": TaylorFOWeightPruner,
    "mean activation": ActivationMeanRankPruner,
    "least squares": LeastSquaresPruner,
}
NOTHING = "nothing"
Row = dict[str, Any]


@dataclass
class Task:
    """A trained network, what to remove from it, and how to evaluate the result."""

    title: str
    model: nn.Module
    rule: dict[str, Any]
    inputs: tuple[Tensor, ...]
    calibration: list[Any]
    score: Callable[[Tensor, Tensor], float]
    loss: Callable[[Tensor], Tensor]  # for Taylor, without labels
    measure: str
    refitted: tuple[str, ...] = tuple(CRITERIA)  # which to reconstruct; it takes longest

    @property
    def example(self) -> Any:
        first = tuple(x[:2] for x in self.inputs)
        return first if len(first) > 1 else first[0]


def photo_task(name: str, share: float, tested: int, batches: int, **others: Any) -> Task:
    case = CASES[name]()
    own_class = lambda z: nn.functional.cross_entropy(z, z.argmax(1))  # noqa: E731
    rule = {"op_types": ["Conv2d"], "max_macs": share, "round_to": 8}
    inputs, calibration = (case.inputs[0][:tested],), case.calibration[:batches]
    scoring = (case.score, own_class, case.measure)
    return Task(case.title, case.model, rule, inputs, calibration, *scoring, **others)


def text_task(share: float, pairs: int) -> Task:
    model, tokenizer = load_embedder()
    task = Retrieval(tokenizer, pairs=pairs, sets=1, seed=0)
    parts = ["*.attention.self.query", "*.intermediate.dense"]
    return Task(
        title="all-MiniLM-L6-v2",
        model=model,
        rule={"op_names": parts, "max_macs": share},
        inputs=task.inputs,
        calibration=task.calibration,
        score=lambda outputs, wanted: float(task.found(outputs).double().mean()),
        loss=lambda z: (z * torch.linspace(-1, 1, z.numel()).view_as(z)).sum(),
        measure="R@1",
    )


TASKS: dict[str, Callable[[], Task]] = {
    "lite0": lambda: photo_task("lite0", 0.8, tested=200, batches=12),
    "resnet50": lambda: photo_task(
        "resnet50", 0.7, tested=100, batches=6, refitted=("L1", "Taylor", "least squares")
    ),
    "minilm": lambda: text_task(0.8, pairs=100),
}


def prune(task: Task, criterion: str) -> nn.Module:
    """Return a copy of the network with its channels masked."""
    model = copy.deepcopy(task.model)
    pruner = CRITERIA[criterion](model, [task.rule], example_inputs=task.example)
    if criterion == "Taylor":
        loss = lambda model, batch: task.loss(run(model, batch))  # noqa: E731
        pruner.calibrate(task.calibration, loss=loss)
    elif hasattr(pruner, "calibrate"):
        pruner.calibrate(task.calibration)
    return pruner.compress()


def run(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch) if isinstance(batch, tuple) else model(batch)


class Judge:
    """Measures networks derived from that of a task."""

    def __init__(self, task: Task) -> None:
        self.task, self.wanted = task, all_outputs(task.model, task.inputs, 20)

    def score(self, model: nn.Module) -> float:
        return self.task.score(all_outputs(model, self.task.inputs, 20), self.wanted)

    def recalibrated(self, model: nn.Module) -> Row:
        if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
            return {}
        changed = copy.deepcopy(model)
        recalibrate(changed, self.task.calibration)
        return {"recalibrated": self.score(changed)}

    def row(self, criterion: str, is_quick: bool) -> Row:
        task = self.task
        if criterion == NOTHING:
            return {"masked": task.score(self.wanted, self.wanted)} | self.recalibrated(task.model)
        model = prune(task, criterion)
        row: Row = {"masked": self.score(model)} | self.recalibrated(model)
        if is_quick:
            return row
        if criterion in task.refitted:
            reconstruct(model, task.calibration, task.model, progress=False)
            row["reconstructed"] = self.score(model)
        result = speedup(model, task.example)
        row["macs"] = result.macs[1] / result.macs[0]
        one = tuple(x[:1] for x in task.inputs)
        calls = (lambda: call(task.model, one), lambda: call(result.model, one))
        return row | {"latency": latency_ratio(*calls, 9)}


def measure(task: Task, criteria: list[str], kept: Row, is_quick: bool) -> Row:
    """Return the stored results of a task, with some criteria measured again."""
    print(f"\n{task.title}, {task.rule['max_macs']:.0%} of the MACs: {task.measure}", flush=True)
    judge, rows = Judge(task), kept.get("rows", {})
    for criterion in criteria:
        rows[criterion] = rows.get(criterion, {}) | judge.row(criterion, is_quick)
        shown = "  ".join(f"{key} {value:.1%}" for key, value in rows[criterion].items())
        print(f"  {criterion:<16}{shown}", flush=True)
    return {
        "title": task.title,
        "measure": task.measure,
        "share": task.rule["max_macs"],
        "float": task.score(judge.wanted, judge.wanted),
        "rows": {name: rows[name] for name in (NOTHING, *CRITERIA) if name in rows},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [NOTHING, *CRITERIA]
    parser.add_argument("--networks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--criteria", nargs="+", default=every, choices=every)
    quick = "keep reconstruction and latency as they were measured before"
    parser.add_argument("--quick", action="store_true", help=quick)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "criteria.json"
    earlier = read_json(path)
    kept = earlier.get("networks", {})
    for name in options.networks:
        kept[name] = measure(TASKS[name](), options.criteria, kept.get(name, {}), options.quick)
        write_json(path, {"networks": {x: kept[x] for x in TASKS if x in kept}}, earlier)


if __name__ == "__main__":
    main()
