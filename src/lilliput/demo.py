"""The demo: train a small CNN on real digits, cut channels out, go over to integers, run all three.

Run with ``./run demo`` or ``python -m lilliput.demo``. The data comes with scikit-learn.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lilliput.errors import MissingExtraError

try:
    import onnxruntime
    import torch
    from rich.console import Console
    from rich.table import Table
    from sklearn.datasets import load_digits
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtraError("the demo needs pip install 'lilliput[torch,onnx,demo]'") from error

from lilliput.torch import (
    AGPPruner,
    ExportResult,
    QATQuantizer,
    SpeedupResult,
    export_onnx,
    speedup,
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


class Exported:
    """A model as an ONNX file, executed by ONNX Runtime."""

    def __init__(self, model_or_quantizer: Any, path: Path, data: Digits) -> None:
        self.data = data
        self.result: ExportResult = export_onnx(model_or_quantizer, path, data.test[0][:BATCH])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def run(self, images: Tensor) -> Any:
        """Return the outputs for some images."""
        return self.session.run(None, {self.session.get_inputs()[0].name: images.numpy()})[0]

    def accuracy(self) -> float:
        """Return the share of test digits that are read correctly."""
        images, labels = self.data.test
        return float((self.run(images).argmax(1) == labels.numpy()).mean())

    def microseconds(self) -> float:
        """Return how long one batch takes."""
        start = time.perf_counter()
        self.run(self.data.test[0][:BATCH])
        return (time.perf_counter() - start) * 1e6


def run(console: Console, folder: Path) -> tuple[list[Exported], SpeedupResult]:
    """Train, prune, shrink, quantize; return the files on the way, and what was cut out."""
    torch.manual_seed(0)
    data = Digits()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    console.print(f"training a CNN on {len(data.train)} handwritten digits …")
    for _ in range(TRAIN_EPOCHS):
        train_epoch(model, optimizer, data)
    large = Exported(model, folder / "before.onnx", data)

    console.print(f"pruning {SPARSITY:.0%} of the channels over {PRUNE_EPOCHS} epochs (AGP) …")
    example = data.test[0][:2]
    rule = {"op_types": ["Conv2d", "Linear"], "final_sparsity": SPARSITY, "end_epoch": PRUNE_EPOCHS}
    rules = [rule | {"round_to": 8}]  # kernels like multiples of eight
    pruner = AGPPruner(model, rules, optimizer, pruning_algorithm="l1", example_inputs=example)
    pruner.compress()
    for epoch in range(PRUNE_EPOCHS):
        pruner.update_epoch(epoch + 1)
        train_epoch(model, optimizer, data)

    console.print("cutting them out, and fine-tuning the smaller network …")
    result = speedup(model, example, optimizer=optimizer)
    for _ in range(FINETUNE_EPOCHS):
        train_epoch(model, optimizer, data)
    small = Exported(model, folder / "small.onnx", data)

    console.print("going over to 8-bit integers (QAT) …")
    for group in optimizer.param_groups:
        group["lr"] = 0.002
    quantizer = QATQuantizer(model, [{"op_types": ["Conv2d", "Linear"]}], optimizer, example)
    quantizer.compress()
    for _ in range(INTEGER_EPOCHS):
        train_epoch(model, optimizer, data)
    integers = Exported(quantizer, folder / "integers.onnx", data)
    return [large, small, integers], result


def compare(files: list[Exported], result: SpeedupResult) -> dict[str, list[float]]:
    """Return the figures of all files; their runs take turns, so that all meet the same machine."""
    times = [[file.microseconds() for file in files] for _ in range(210)][10:]
    before, after = result.parameters
    return {
        "accuracy": [file.accuracy() for file in files],
        "parameters": [before, after, after],
        "bytes of the ONNX file": [file.result.bytes for file in files],
        f"µs per batch of {BATCH}": [statistics.median(x) for x in zip(*times, strict=True)],
    }


def main() -> None:
    """Run the demo and print a before/after table."""
    console = Console()
    start = time.perf_counter()
    torch.set_num_threads(1)  # as many threads as cores only get in each other's way here
    with tempfile.TemporaryDirectory() as folder:
        files, result = run(console, Path(folder))
        figures = compare(files, result)
    console.print(str(result), highlight=False)
    console.print(str(files[-1].result).partition("\n")[2], highlight=False)
    table = Table(title="before → smaller → integers, all executed by ONNX Runtime")
    for title in ("", "before", "smaller", "integers", "in all"):
        table.add_column(title, justify="left" if not title else "right")
    for key, values in figures.items():
        if key == "accuracy":
            change = f"{(values[-1] - values[0]) * 100:+.2f} points"
            table.add_row(key, *(f"{value:.2%}" for value in values), change)
        else:
            word = "faster" if key.startswith("µs") else "smaller"
            change = f"{values[0] / values[-1]:.1f}× {word}"
            table.add_row(key, *(f"{value:,.0f}" for value in values), change)
    console.print(table)
    console.print(f"Done in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
