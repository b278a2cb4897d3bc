"""The demo: train a small CNN on real digits, cut channels out, quantize it, run all three.

Run with ``./run demo`` or ``lilliput demo``. The data comes with scikit-learn. It writes three ONNX files
and a report to the folder ``lilliput-demo``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lilliput.cli.table import show
from lilliput.errors import MissingExtraError

try:
    import onnxruntime  # noqa: F401
    import torch
    from sklearn.datasets import load_digits
    from torch import Tensor, nn
except ModuleNotFoundError as error:
    if error.name not in ("onnxruntime", "torch", "sklearn"):
        raise
    raise MissingExtraError("the demo needs pip install 'lilliput[torch,onnx,demo]'") from error

from lilliput.report.snapshot import Snapshot
from lilliput.torch import (
    AGPPruner,
    ChannelGroups,
    ExportResult,
    QATQuantizer,
    QuantizationReport,
    Receipt,
    SpeedupResult,
    build_report,
    channel_groups,
    export_onnx,
    measure_all,
    quantization_report,
    snapshot,
    speedup,
    take_receipt,
)

SPARSITY = 0.7
TRAIN_EPOCHS, PRUNE_EPOCHS, FINETUNE_EPOCHS, INTEGER_EPOCHS = 15, 15, 10, 3
BATCH = 64


class Digits:
    """The 1,797 handwritten digits of scikit-learn, a quarter of them kept for testing."""

    def __init__(self) -> None:
        bunch = load_digits()
        order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
        images = (torch.tensor(bunch.images, dtype=torch.float32) / 16).unsqueeze(1)[order]
        labels = torch.tensor(bunch.target)[order]
        cut = len(labels) * 3 // 4
        self.train = torch.utils.data.TensorDataset(images[:cut], labels[:cut])
        self.test: tuple[Tensor, Tensor] = (images[cut:], labels[cut:])


def build_model() -> nn.Module:
    """Return a small CNN for 8×8 images."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, data: Digits) -> None:
    """Run one epoch of plain training: compressing does not change this function."""
    model.train()
    for images, labels in torch.utils.data.DataLoader(data.train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


class Journey(NamedTuple):
    """The results of the demo."""

    data: Digits
    groups: ChannelGroups
    shrunk: SpeedupResult
    files: list[ExportResult]  # before, smaller, integers
    layers: tuple[Snapshot, Snapshot]  # before and after
    tensors: QuantizationReport


def run(say: Callable[[str], None], folder: Path) -> Journey:
    """Train, prune, shrink, quantize, and write a file at each stage."""
    torch.manual_seed(0)
    data, model = Digits(), build_model()
    batch, example = data.test[0][:BATCH], data.test[0][:2]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    say(f"training a CNN on {len(data.train)} handwritten digits …")
    for _ in range(TRAIN_EPOCHS):
        train_epoch(model, optimizer, data)
    large = export_onnx(model, folder / "before.onnx", batch)
    before, groups = snapshot(model, batch, timing=True), channel_groups(model, example)

    say(f"pruning {SPARSITY:.0%} of the channels over {PRUNE_EPOCHS} epochs (AGP) …")
    rule = {"op_types": ["Conv2d", "Linear"], "final_sparsity": SPARSITY, "end_epoch": PRUNE_EPOCHS}
    rules = [rule | {"round_to": 8}]  # kernels prefer multiples of eight
    pruner = AGPPruner(model, rules, optimizer, pruning_algorithm="l1", example_inputs=example)
    pruner.compress()
    for epoch in range(PRUNE_EPOCHS):
        pruner.update_epoch(epoch + 1)
        train_epoch(model, optimizer, data)

    say("cutting the channels out, and fine-tuning the smaller network …")
    shrunk = speedup(model, example, optimizer=optimizer)
    for _ in range(FINETUNE_EPOCHS):
        train_epoch(model, optimizer, data)
    small = export_onnx(model, folder / "smaller.onnx", batch)

    say("quantizing to 8-bit integers (QAT) …")
    for group in optimizer.param_groups:
        group["lr"] = 0.002
    quantizer = QATQuantizer(model, [{"op_types": ["Conv2d", "Linear"]}], optimizer, example)
    quantizer.compress()
    for _ in range(INTEGER_EPOCHS):
        train_epoch(model, optimizer, data)
    integers = export_onnx(quantizer, folder / "integers.onnx", batch, assume_vnni=False)
    tensors = quantization_report(quantizer, [batch], result=integers)
    layers = before, snapshot(model, batch, timing=True)
    return Journey(data, groups, shrunk, [large, small, integers], layers, tensors)


def compare(journey: Journey) -> tuple[Receipt, list[dict[str, Any]]]:
    """Execute all three files; return the receipt, and one point per file for the report."""
    images, labels = journey.data.test

    def accuracy(network: Any) -> float:
        return float((network(images).argmax(1) == labels).float().mean())

    paths = [file.path for file in journey.files]
    measured = measure_all(paths, images[:BATCH], evaluate=accuracy, runs=200)
    agreement = journey.files[-1].runtimes["onnxruntime"]
    receipt = take_receipt(
        *(measured[0], measured[-1]), metric_name="accuracy", max_difference=agreement.max_error
    )
    points = [
        {"name": x.name, "bytes": x.bytes, "macs": x.macs, "p50": x.p50, "metric": x.metric}
        for x in measured
    ]
    return receipt, points


def main(folder: str | Path = "lilliput-demo") -> Receipt:
    """Run the demo, print the receipt and write the report."""
    start, target = time.perf_counter(), Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # more threads would only slow it down here
    journey = run(partial(print, flush=True), target)
    receipt, points = compare(journey)
    report = build_report(
        receipt,
        before=journey.layers[0],
        after=journey.layers[1],
        quantization=journey.tensors,
        points=points,
        groups=journey.groups,
        export=journey.files[-1],
        recipe=Path(__file__).read_text(encoding="utf-8"),
        reproduce="./run demo",
        title="Lilliput demo: a CNN that reads digits",
    )
    report.save(target / "report.html")
    print(journey.shrunk)
    print(str(journey.files[-1]).partition("\n")[2])
    show(receipt, sys.stdout)
    print(f"report: {target / 'report.html'}")
    print(f"Done in {time.perf_counter() - start:.0f} s.")
    return receipt


if __name__ == "__main__":
    main()
