"""Half of the MACs of a ResNet on Fashion-MNIST: accuracy, size and speed before and after.

    ./run python benchmarks/structured_accuracy.py --dense-only   # train and keep the baselines
    ./run python benchmarks/structured_accuracy.py                # prune, fine-tune, speed up

The pruned model is compared with a control: the dense model trained further with the same fine-tuning.
Test accuracy is not used to select anything. Baselines are kept in the data cache.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from archives import cache_folder
from data import fashion_mnist
from record import RESULTS, write_json
from timing import call, latency_ratio, macs, parameters, state_bytes
from torch import nn

RESULT = RESULTS / "structured_accuracy.json"
BATCH = 256
PRUNERS = ("L1NormPruner", "TaylorFOWeightPruner")


class Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if width_in != width:
            conv = nn.Conv2d(width_in, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def build_model(widths: tuple[int, ...] = (24, 48, 96)) -> nn.Sequential:
    """Return a residual network of 0.39 million parameters for 28×28 grey images."""
    stem = nn.Conv2d(1, widths[0], 3, 2, 1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(widths[0]), nn.ReLU()]
    width_in = widths[0]
    for width in widths:
        layers += [Block(width_in, width, 1 if width == width_in else 2), Block(width, width, 1)]
        width_in = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, 10)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


class Data:
    """Normalised Fashion-MNIST with random flips and shifts of up to two pixels for training."""

    def __init__(self) -> None:
        (train_x, self.train_y), (test_x, self.test_y) = fashion_mnist()
        self.train_x = F.pad((train_x.float() / 255 - 0.286) / 0.353, (2, 2, 2, 2), value=-0.81)
        self.test_x = (test_x.float() / 255 - 0.286) / 0.353

    @property
    def steps(self) -> int:
        return len(self.train_x) // BATCH

    def batches(self, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(self.train_x), generator=generator)
        for start in range(0, self.steps * BATCH, BATCH):
            chosen = order[start : start + BATCH]
            x, y = self.train_x[chosen], self.train_y[chosen]
            groups = torch.randint(50, (BATCH,), generator=generator)
            out = torch.empty(BATCH, 1, 28, 28)
            for group in range(50):  # 25 shifts, flipped or not
                rows = groups == group
                shift, flip = divmod(group, 2)
                top, left = divmod(shift, 5)
                moved = x[rows, :, top : top + 28, left : left + 28]
                out[rows] = moved.flip(-1) if flip else moved
            yield out.to(memory_format=torch.channels_last), y


def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    with torch.no_grad():
        hits = [
            (model(x.to(memory_format=torch.channels_last)).argmax(1) == y).sum().item()
            for x, y in zip(data.test_x.split(500), data.test_y.split(500), strict=True)
        ]
    return sum(hits) / len(data.test_y)


def new_optimizer(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=5e-4)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    epochs: int,
    seed: int,
    warm_up: float,
    progress: Path | None = None,
) -> float:
    """Train with a one-cycle schedule; return the seconds it took.

    With a ``progress`` file, every epoch is stored there and a later call resumes from it.
    """
    generator = torch.Generator().manual_seed(seed)
    rate = optimizer.param_groups[0]["lr"]
    total = epochs * data.steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total, pct_start=warm_up, cycle_momentum=False
    )
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    done, earlier = 0, 0.0
    if progress is not None and progress.is_file():
        saved = torch.load(progress)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        generator.set_state(saved["generator"])
        done, earlier = saved["epoch"], saved["seconds"]
    start = time.perf_counter() - earlier
    for epoch in range(done, epochs):
        model.train()
        for x, y in data.batches(generator):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
        seconds = time.perf_counter() - start
        print(
            f"  epoch {epoch + 1}/{epochs}: {accuracy(model, data):.2%} after {seconds:.0f} s",
            flush=True,
        )
        if progress is not None:
            record: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
            record |= {"generator": generator.get_state(), "epoch": epoch + 1, "seconds": seconds}
            save(record, progress)
    return time.perf_counter() - start


def save(record: Any, path: Path) -> None:
    partial = path.with_suffix(".partial")
    torch.save(record, partial)
    partial.replace(path)


def dense_baseline(data: Data, seed: int, epochs: int) -> tuple[nn.Module, dict[str, float]]:
    torch.manual_seed(seed)
    model = build_model()

    def learn(progress: Path) -> float:
        return train(model, new_optimizer(model, 0.2), data, epochs, seed, 0.2, progress)

    return model, kept(f"dense_seed{seed}_epochs{epochs}", model, data, learn)


def control(
    dense: nn.Module, data: Data, options: argparse.Namespace, seed: int
) -> dict[str, float]:
    """The dense model with the same fine-tuning, so that more training is not mistaken for pruning."""
    model = copy.deepcopy(dense)

    def learn(progress: Path) -> float:
        return fine_tune(model, new_optimizer(model, options.rate), data, options, seed, progress)

    key = f"control_seed{seed}_epochs{options.epochs}+{options.tune_epochs}_rate{options.rate}"
    return kept(key, model, data, learn)


def kept(
    key: str, model: nn.Module, data: Data, learn: Callable[[Path], float]
) -> dict[str, float]:
    """Train the model, or load it if an earlier run has trained it."""
    path = cache_folder() / "checkpoints" / f"fashion_resnet_{key}.pt"
    path.parent.mkdir(exist_ok=True)
    if not path.is_file():
        print(f"training {key}")
        progress = path.with_suffix(".progress")
        save({"seconds": learn(progress), "state": model.state_dict()}, path)
        progress.unlink()
    saved = torch.load(path)
    model.load_state_dict(saved["state"])
    return {"accuracy": accuracy(model, data), "train_seconds": saved["seconds"]}


def fine_tune(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    options: argparse.Namespace,
    seed: int,
    progress: Path | None = None,
) -> float:
    return train(model, optimizer, data, options.tune_epochs, seed + 1000, 0.1, progress)


def start_pruning(
    name: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    keep: float,
    round_to: int,
) -> Any:
    """Mask the model down to the share ``keep`` of its MACs. All calls of the pruner's API are here."""
    import lilliput.torch

    rules = [{"op_types": ["default"], "max_macs": keep, "round_to": round_to}]
    pruner_class = getattr(lilliput.torch, name)
    pruner = pruner_class(model, rules, optimizer, example_inputs=data.test_x[:2])
    if hasattr(pruner, "calibrate"):  # it ranks by data: one tenth of an epoch
        batches = data.batches(torch.Generator().manual_seed(0))
        few = [batch for _, batch in zip(range(data.steps // 10), batches, strict=False)]
        model.eval()  # batch norm keeps its statistics
        pruner.calibrate(few, loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    pruner.compress()
    return pruner


def prune(
    name: str, dense: nn.Module, data: Data, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    from lilliput.torch import speedup

    sample = data.test_x[:16].to(memory_format=torch.channels_last)
    model = copy.deepcopy(dense)
    optimizer = new_optimizer(model, options.rate)
    pruner = start_pruning(name, model, optimizer, data, options.keep_macs, options.round_to)
    record: dict[str, Any] = {"pruner": name, "seed": seed, "after_pruning": accuracy(model, data)}
    record["tune_seconds"] = fine_tune(model, optimizer, data, options, seed)
    record["after_tuning"] = accuracy(model, data)
    with torch.no_grad():
        reference = model(sample)
    start = time.perf_counter()
    result = speedup(model, sample)
    record["speedup_seconds"] = time.perf_counter() - start
    small = result.model.eval()
    del pruner
    record["kind"] = str(result.kind)
    record["after_speedup"] = accuracy(small, data)
    error = (call(small, sample) - reference).abs().max() / reference.abs().max()
    record["relative_error"] = error.item()
    record["parameters_kept"] = parameters(small) / parameters(dense)
    record["macs_kept"] = macs(small, sample) / macs(dense, sample)
    record["bytes_kept"] = state_bytes(small) / state_bytes(dense)
    record["torch_latency_ratio"] = latency_ratio(
        lambda: call(dense, sample), lambda: call(small, sample), runs=101
    )
    record["onnx_latency_ratio"] = onnx_latency_ratio(dense, small, sample)
    return record


def onnx_latency_ratio(dense: nn.Module, small: nn.Module, sample: torch.Tensor) -> float:
    """Export both models and time them in ONNX Runtime on one thread."""
    from lilliput.export.run import open_session

    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for index, model in enumerate((dense, small)):
            path = Path(folder) / f"{index}.onnx"
            torch.onnx.export(
                model, (sample.contiguous(),), path, input_names=["x"], dynamo=True, verbose=False
            )
            session = open_session(path, threads=1)
            feed = {"x": sample.contiguous().numpy()}
            runs.append(lambda session=session, feed=feed: session.run(None, feed))
    return latency_ratio(*runs, runs=101)


def show(records: list[dict[str, Any]]) -> None:
    for record in records:
        print(f"seed {record['seed']}, {record.get('pruner', 'dense')}")
        for key, value in record.items():
            if isinstance(value, float):
                print(f"  {key:<22}{value:.5g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=14, help="training of the dense baseline")
    parser.add_argument("--tune-epochs", type=int, default=5, help="fine-tuning after pruning")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of fine-tuning")
    parser.add_argument("--keep-macs", type=float, default=0.5)
    parser.add_argument(
        "--round-to", type=int, default=8, help="channels come in multiples of this"
    )
    parser.add_argument("--pruners", nargs="+", default=list(PRUNERS))
    parser.add_argument("--dense-only", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = Data()
    records: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        dense, record = dense_baseline(data, seed, options.epochs)
        record["parameters"] = parameters(dense)
        record["macs"] = macs(dense, data.test_x[:1])
        again = control(dense, data, options, seed)
        record |= {f"control_{key}": value for key, value in again.items()}
        records.append({"seed": seed, **record})
        if not options.dense_only:
            records += [prune(name, dense, data, options, seed) for name in options.pruners]
    show(records)
    if not options.dense_only:
        write_json(RESULT, {"options": vars(options), "torch": torch.__version__, "runs": records})


if __name__ == "__main__":
    main()
