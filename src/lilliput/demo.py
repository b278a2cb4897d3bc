"""The demo: train a small CNN on real handwritten digits, prune its channels, cut them out, run both.

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

from lilliput.speedup.capture import quiet
from lilliput.torch import AGPPruner, SpeedupResult, speedup

SPARSITY = 0.7
TRAIN_EPOCHS, PRUNE_EPOCHS, FINETUNE_EPOCHS = 15, 15, 10
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

    def __init__(self, model: nn.Module, path: Path, data: Digits) -> None:
        self.path, self.images = path, data.test[0][:BATCH].numpy()
        with quiet():
            program = torch.onnx.export(
                model.eval(), (data.test[0][:BATCH],), dynamo=True, verbose=False
            )
        if program is not None:
            program.save(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def run(self) -> Any:
        """Return the outputs for one batch."""
        return self.session.run(None, {self.session.get_inputs()[0].name: self.images})[0]

    def milliseconds(self) -> float:
        """Return how long one run takes."""
        start = time.perf_counter()
        self.run()
        return (time.perf_counter() - start) * 1e3


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits) -> float:
    """Return the share of test digits that a model reads correctly."""
    images, labels = data.test
    return float((model.eval()(images).argmax(1) == labels).float().mean())


def run(console: Console, folder: Path) -> tuple[dict[str, tuple[float, float]], SpeedupResult]:
    """Train, prune, shrink, export, execute; return what was measured before and after."""
    torch.manual_seed(0)
    data = Digits()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    console.print(f"training a CNN on {len(data.train)} handwritten digits …")
    for _ in range(TRAIN_EPOCHS):
        train_epoch(model, optimizer, data)
    large = Exported(model, folder / "before.onnx", data)
    right_before = accuracy(model, data)

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
    small = Exported(model, folder / "after.onnx", data)
    return compare(large, small, (right_before, accuracy(model, data)), result), result


def compare(
    large: Exported, small: Exported, right: tuple[float, float], result: SpeedupResult
) -> dict[str, tuple[float, float]]:
    """Return the figures of both files; their runs take turns, so that both meet the same machine."""
    times = [(large.milliseconds(), small.milliseconds()) for _ in range(210)][10:]
    return {
        "accuracy": right,
        "parameters": result.parameters,
        "multiplications per image": (result.macs[0] / 2, result.macs[1] / 2),
        "bytes of the ONNX file": (large.path.stat().st_size, small.path.stat().st_size),
        f"µs per batch of {BATCH}": (
            statistics.median(x for x, _ in times) * 1e3,
            statistics.median(x for _, x in times) * 1e3,
        ),
    }


def main() -> None:
    """Run the demo and print a before/after table."""
    console = Console()
    start = time.perf_counter()
    torch.set_num_threads(1)  # as many threads as cores only get in each other's way here
    with tempfile.TemporaryDirectory() as folder:
        figures, result = run(console, Path(folder))
    console.print(str(result), highlight=False)
    table = Table(title="before → after, both executed by ONNX Runtime")
    for title in ("", "before", "after", "ratio"):
        table.add_column(title, justify="left" if not title else "right")
    for key, (old, new) in figures.items():
        if key == "accuracy":
            table.add_row(key, f"{old:.2%}", f"{new:.2%}", f"{(new - old) * 100:+.2f} points")
        else:
            word = "faster" if key.startswith("µs") else "smaller"
            table.add_row(key, f"{old:,.0f}", f"{new:,.0f}", f"{old / new:.1f}× {word}")
    console.print(table)
    console.print(f"Done in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
