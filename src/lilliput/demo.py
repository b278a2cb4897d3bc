"""The demo: train a small CNN on real handwritten digits, prune it gradually, report what it gained.

Run with ``./run demo`` or ``python -m lilliput.demo``. The data comes with scikit-learn.
"""

from __future__ import annotations

import time
import zlib

from lilliput.errors import MissingExtraError

try:
    import torch
    from rich.console import Console
    from rich.table import Table
    from sklearn.datasets import load_digits
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtraError("the demo needs pip install 'lilliput[torch,demo]'") from error

from lilliput.backends.torch.files import dump_tensors
from lilliput.torch import AGPPruner

SPARSITY = 0.9
TRAIN_EPOCHS, PRUNE_EPOCHS, FINETUNE_EPOCHS = 15, 15, 10


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


@torch.no_grad()
def measure(model: nn.Module, data: Digits) -> dict[str, float]:
    """Return accuracy, parameter counts and file sizes of a plain model."""
    model.eval()
    images, labels = data.test
    parameters = [p.detach() for p in model.parameters()]
    saved = dump_tensors(model.state_dict())
    return {
        "accuracy": float((model(images).argmax(1) == labels).float().mean()),
        "parameters": sum(p.numel() for p in parameters),
        "non-zero parameters": sum(int(p.count_nonzero()) for p in parameters),
        "bytes on disk": len(saved),
        "bytes on disk, deflated": len(zlib.compress(saved, 9)),
    }


def run(console: Console) -> tuple[dict[str, float], dict[str, float]]:
    """Train, prune, fine-tune; return what was measured before and after."""
    torch.manual_seed(0)
    data = Digits()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    console.print(f"training a CNN on {len(data.train)} handwritten digits …")
    for _ in range(TRAIN_EPOCHS):
        train_epoch(model, optimizer, data)
    before = measure(model, data)

    console.print(f"pruning to {SPARSITY:.0%} over {PRUNE_EPOCHS} epochs (AGP), then fine-tuning …")
    rules = [{"op_types": ["default"], "final_sparsity": SPARSITY, "end_epoch": PRUNE_EPOCHS}]
    pruner = AGPPruner(model, rules, optimizer)
    pruner.compress()
    for epoch in range(PRUNE_EPOCHS + FINETUNE_EPOCHS):
        pruner.update_epoch(epoch + 1)
        train_epoch(model, optimizer, data)
    pruner.strip()
    return before, measure(model, data)


def main() -> None:
    """Run the demo and print a before/after table."""
    console = Console()
    start = time.perf_counter()
    before, after = run(console)
    table = Table(title="before → after")
    for title in ("", "before", "after", "ratio"):
        table.add_column(title, justify="left" if not title else "right")
    for key, old in before.items():
        new = after[key]
        if key == "accuracy":
            table.add_row(key, f"{old:.2%}", f"{new:.2%}", f"{(new - old) * 100:+.2f} points")
        else:
            ratio = f"{old / new:.1f}× smaller" if new < old else "same"
            table.add_row(key, f"{old:,.0f}", f"{new:,.0f}", ratio)
    console.print(table)
    console.print(
        "Verdict: the zeros are real, so the file deflates well; the layers still have their "
        "full shape, so it does not run faster yet."
    )
    console.print(f"Done in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
