"""Halve the latency of a small ResNet on Fashion-MNIST: search compared with uniform pruning.

    ./run python benchmarks/search_fashion.py train --seeds 3
    ./run python benchmarks/search_fashion.py time      # on a quiet machine

Each seed trains a network, from which four variants are trained for the same number of epochs: unchanged (the
control), with the same share of channels removed from every layer by their L1 norm, with the channels that
`Search` removes, and with channels and bits that it chooses. As little as necessary is removed for half the
latency in ONNX Runtime. The search uses training images only; the test images are used once, at the end.

Networks are kept in the data cache. `time` measures all files again, alternating with the file of the dense
network, and writes the result.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from archives import cache_folder
from record import RESULTS, read_json, write_json
from structured_accuracy import Block, Data, accuracy, new_optimizer, train
from timing import latency_ratio, macs
from torch import nn

from lilliput.export.targets.executed import open_file
from lilliput.measure.timing import time_calls
from lilliput.report.measure import how_to_measure
from lilliput.torch import L1NormPruner, PTQQuantizer, Search, export_onnx, speedup

RESULT = RESULTS / "search_fashion.json"
WIDTHS = (16, 32, 64)
BUDGET = 0.5
TIMED = 50  # images at a time
# Whole blocks of channels of the runtime's kernels: at least 8 of the first layers' 16.
NARROW = {"op_names": ["0", "3.*"], "sparsity": {"choose": [0, 0.5]}}
WIDE = {"op_names": ["4.*", "5.*"], "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}}
CHANNELS = [NARROW, WIDE]
BITS = {"quant_bits": {"choose": [None, 8]}}
BOTH = [{**NARROW, **BITS}, {**WIDE, **BITS}, {"op_types": ["Linear"], **BITS}]
LAYERS = {"op_types": ["Conv2d"]}


def build() -> nn.Sequential:
    """Return a ResNet of eight layers for grey images of 28×28 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(1, WIDTHS[0], 3, 2, 1, bias=False)]
    layers += [nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()]
    width_in = WIDTHS[0]
    for width in WIDTHS:
        layers.append(Block(width_in, width, 1 if width == width_in else 2))
        width_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, 10))


class Runs:
    """The networks of one seed, each trained once and stored."""

    def __init__(self, data: Data, seed: int, options: argparse.Namespace) -> None:
        self.data, self.seed, self.options = data, seed, options
        name = f"seed{seed}-{options.epochs}+{options.tune_epochs}"
        self.folder = cache_folder() / "search-fashion" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        clean = data.train_x[:, :, 2:-2, 2:-2]  # without the frame for shifts
        self.example = clean[:TIMED].contiguous()
        self.batches = list(clean[TIMED : TIMED + 1024].split(128))
        self.seen, self.labels = clean[2000:7000], data.train_y[2000:7000]

    @torch.no_grad()
    def judged(self, model: Any) -> float:
        """Return the accuracy on training images, by which the search decides."""
        hits = [
            int((torch.as_tensor(model(x)).argmax(1) == y).sum())
            for x, y in zip(self.seen.split(TIMED), self.labels.split(TIMED), strict=True)
        ]
        return sum(hits) / len(self.labels)

    def train_all(self) -> dict[str, Any]:
        """Train networks that are not stored yet, and return the figures of each variant."""
        torch.manual_seed(self.seed)
        dense = build()
        path = self.folder / "dense.pt"
        if path.is_file():
            dense.load_state_dict(torch.load(path))
        else:
            train(dense, new_optimizer(dense, 0.2), self.data, self.options.epochs, self.seed, 0.2)
            torch.save(dense.state_dict(), path)
        dense.eval()
        self.write("dense", dense)
        record: dict[str, Any] = {"dense": {"accuracy": accuracy(dense, self.data)}}
        ways = {
            "control": lambda: (copy.deepcopy(dense), []),
            "uniform": lambda: self.uniform(dense),
            "search": lambda: self.searched(dense, CHANNELS, "search"),
            "search, bits too": lambda: self.searched(dense, BOTH, "both"),
        }
        kept = read_json(self.folder / "figures.json")
        for title, make in ways.items():
            if title not in kept:
                kept[title] = self.tuned(title, *make())
                write_json(self.folder / "figures.json", kept)
            print(self.seed, title, kept[title], flush=True)
            record[title] = kept[title]
        return record

    def uniform(self, dense: nn.Module) -> tuple[nn.Module, list[Any]]:
        """Return the dense network with the smallest uniform sparsity that makes it fast enough."""
        for percent in range(10, 95, 2):
            model = copy.deepcopy(dense)
            rules = [{**LAYERS, "sparsity": percent / 100}]
            model = L1NormPruner(model, rules, example_inputs=self.example).compress()
            small = speedup(model, self.example).model
            ratio = self.ratio(self.write("tried", small))
            print(f"  uniform {percent} %: latency {ratio:.3f}", flush=True)
            if ratio <= BUDGET:
                return small, []
        raise SystemExit("no uniform sparsity is fast enough.")

    def searched(
        self, dense: nn.Module, rules: list[Any], name: str
    ) -> tuple[nn.Module, list[Any]]:
        """Return the network that the search has cut, and its rules for a quantizer."""
        search = Search(
            copy.deepcopy(dense),
            rules,
            budget={"latency": BUDGET},
            evaluate=self.judged,
            data=self.batches,
            example_inputs=self.example,
            trials=self.options.trials,
        )
        with tempfile.TemporaryDirectory() as folder:
            task = search.start(Path(folder))
            best = search.run_strategy(task)
        (self.folder / f"{name}.txt").write_text(str(search.space.config_list(best.choice)))
        cut = task.maker.order(best.choice).cut()
        return cut, search.space.quantization(best.choice)

    def tuned(self, title: str, model: nn.Module, bits: list[Any]) -> dict[str, Any]:
        """Train a network further, and return the figures of the written file."""
        untrained = accuracy(model, self.data)
        epochs, seed = self.options.tune_epochs, self.seed + 1000
        train(model, new_optimizer(model, self.options.rate), self.data, epochs, seed, 0.1)
        work = macs(model.eval(), self.example)
        compressed: Any = model
        if bits:
            compressed = PTQQuantizer(model, bits, example_inputs=self.example, weights="mse")
            model = compressed.compress()
            compressed.calibrate(self.batches, progress=False)
        path = self.write(title, compressed)
        return {
            "accuracy": self.executed(path),
            "before training on": untrained,
            "latency": self.ratio(path),
            "macs": work / macs(build().eval(), self.example),
        }

    def executed(self, path: Path) -> float:
        """Return the accuracy of a file on the test images."""
        file, x, y = open_file(path), self.data.test_x, self.data.test_y
        hits = [
            int((torch.as_tensor(file(part)).argmax(1) == wanted).sum())
            for part, wanted in zip(x.split(TIMED), y.split(TIMED), strict=True)
        ]
        return sum(hits) / len(y)

    def write(self, title: str, model: Any) -> Path:
        path = self.path(title)
        export_onnx(model, path, self.example, check=False, dynamic_shapes=False)
        return path

    def ratio(self, path: Path) -> float:
        """Return the CPU time of a file relative to the dense network's, timed alternately, on one thread."""
        files = [open_file(self.folder / "dense.onnx"), open_file(path)]
        one, two = (how_to_measure(file).caller(file, self.example) for file in files)
        return latency_ratio(one, two, runs=101)

    def timed(self, record: dict[str, Any]) -> None:
        """Record the latency of each file, timed alternately."""
        titles = [title for title in record if title != "dense"]
        paths = [self.path(title) for title in ["dense", *titles]]
        files = [open_file(path) for path in paths]
        calls = [how_to_measure(file).caller(file, self.example) for file in files]
        whole, *others = (statistics.median(x) for x in time_calls(calls, 200, 4.0))
        for title, milliseconds in zip(titles, others, strict=True):
            record[title]["latency"] = milliseconds / whole
        record["dense"]["ms"] = whole

    def path(self, title: str) -> Path:
        return self.folder / f"{title.replace(', ', '-').replace(' ', '-')}.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["train", "time"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6, help="of the dense network")
    parser.add_argument("--tune-epochs", type=int, default=3, help="of each way from there")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of these")
    parser.add_argument("--trials", type=int, default=20, help="of the search")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, records = Data(), []
    for seed in range(options.seeds):
        runs = Runs(data, seed, options)
        record = runs.train_all()
        if options.part == "time":
            runs.timed(record)
        records.append(record)
    if options.part == "time":
        settings = {k: v for k, v in vars(options).items() if k != "part"}
        write_json(
            RESULT, {"options": settings, "budget": BUDGET, "batch": TIMED, "seeds": records}
        )


if __name__ == "__main__":
    main()
