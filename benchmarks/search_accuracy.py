"""Half the latency of a small ResNet: what a search finds against uniform pruning and FastNAS.

    ./run python benchmarks/search_accuracy.py train --data cifar-10 --seeds 3
    ./run python benchmarks/search_accuracy.py time --data cifar-10 --seeds 3     # on a quiet machine

A trained network (ResNet-20 on CIFAR-10, ResNet-8 on Fashion-MNIST) goes several ways for equally many
epochs more: as it is (``control``), with the same share of channels removed from every layer by their L1 norm
(``uniform``), with the channels that `Search` removes (``search``), also with all layers in 8 bits
(``int8``, as by default in `compress`) or with bits that it chooses (``bits``), and with the channels that
FastNAS of ModelOpt removes (``fastnas``, where nvidia-modelopt is installed). Removed is as little as it
takes for half the latency in ONNX Runtime; FastNAS has its own constraint, a share of the operations, which
is lowered until the file is fast enough, or until it finds no network; then its fastest one counts. Choices
are made by validation images, which are not trained on; the test images are read once, at the end.

With one dense network for all seeds, each way cuts it once, and seeds differ in the training that follows.
Networks are kept in the data cache, so that a run that was stopped goes on. `time` measures all files again,
in turns with the file of the dense network, and writes the result.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from archives import cache_folder
from papers.networks import resnet_20
from record import RESULTS, command, read_json, write_json
from search_peers import fastnas
from search_training import Data, accuracy, load_weights, train
from structured_accuracy import Block
from timing import latency_ratio, macs
from torch import nn

from lilliput.export.targets.executed import open_file
from lilliput.measure.timing import time_calls
from lilliput.report.measure import how_to_measure
from lilliput.torch import L1NormPruner, PTQQuantizer, Search, export_onnx, speedup

BUDGET = 0.5
TIMED = 50  # images at a time
JUDGED = 2000  # validation images by which choices are made
LAYERS = {"op_types": ["Conv2d"]}
EIGHT, BITS = {"quant_bits": 8}, {"quant_bits": {"choose": [None, 8]}}
Cut = tuple[nn.Module, list[Any]]  # a network before it trains on, and rules for a quantizer
WAYS = ("control", "uniform", "search", "int8", "bits", "fastnas")


def resnet_8() -> nn.Sequential:
    """Return a ResNet of eight layers for grey images of 28×28 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, 2, 1, bias=False)]
    layers += [nn.BatchNorm2d(16), nn.ReLU()]
    layers += [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


BUILD = {"cifar-10": resnet_20, "fashion-mnist": resnet_8}


def choices(model: nn.Module) -> list[dict[str, Any]]:
    """Return rules with whole blocks of channels of the runtime's kernels: eight at least."""
    widths: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            widths.setdefault(module.out_channels, []).append(name)
    shares = {width: [0, 0.5] if width < 32 else [0, 0.25, 0.5, 0.75] for width in widths}
    return [{"op_names": names, "sparsity": {"choose": shares[w]}} for w, names in widths.items()]


class Runs:
    """The networks of one seed, each trained once and kept."""

    def __init__(
        self, data: Data, seed: int, options: argparse.Namespace, cut: dict[str, Cut]
    ) -> None:
        self.data, self.seed, self.options = data, seed, options
        self.cut = cut if options.dense and len(options.dense) == 1 else {}  # of this dense network
        self.build: Callable[[], nn.Sequential] = BUILD[options.data]
        name = f"seed{seed}-{options.epochs}+{options.tune_epochs}"
        self.folder = cache_folder() / f"search-{options.data}" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        seen = data.normalised(data.images[: TIMED + 1024])
        self.example, self.batches = seen[:TIMED], list(seen[TIMED:].split(128))

    def judged(self, model: Any) -> float:
        """Return the accuracy on validation images, by which choices are made."""
        images, labels = self.data.valid
        return executed(model, images[:JUDGED], labels[:JUDGED])

    def train_all(self) -> dict[str, Any]:
        """Train what is not kept yet, and return the figures of each way."""
        dense = self.dense()
        self.write("dense", dense)
        record: dict[str, Any] = {"dense": {"accuracy": accuracy(dense, self.data.test)}}
        print(self.seed, "dense", record["dense"], flush=True)
        makers: dict[str, Callable[[], Cut]] = {
            "control": lambda: (copy.deepcopy(dense), []),
            "uniform": lambda: (self.uniform(dense), []),
            "search": lambda: self.searched(dense, choices(dense), "search"),
            "int8": lambda: self.searched(dense, self.with_bits(dense, EIGHT), "int8"),
            "bits": lambda: self.searched(dense, self.with_bits(dense, BITS), "bits"),
            "fastnas": lambda: (self.fastnas(dense), []),
        }
        kept = read_json(self.folder / "figures.json")
        for title in self.options.ways:
            if title not in kept:
                if title == "fastnas" and importlib.util.find_spec("modelopt") is None:
                    print("fastnas: left out, nvidia-modelopt is not installed.", flush=True)
                    continue
                if title not in self.cut:
                    self.cut[title] = makers[title]()
                model, bits = self.cut[title]
                kept[title] = self.tuned(title, copy.deepcopy(model), bits)
                write_json(self.folder / "figures.json", kept)
            print(self.seed, title, kept[title], flush=True)
            record[title] = kept[title]
        return record

    def dense(self) -> nn.Module:
        """Return the dense network, trained here or elsewhere."""
        torch.manual_seed(self.seed)
        model, path = self.build(), self.folder / "dense.pt"
        given = self.options.dense
        if given:
            load_weights(model, given[min(self.seed, len(given) - 1)])
        elif path.is_file():
            load_weights(model, path)
        else:
            train(model, self.data, self.options.epochs, 0.2, 0.2, self.seed)
            torch.save(model.state_dict(), path)
        return model.eval()

    def uniform(self, dense: nn.Module) -> nn.Module:
        """Return the dense network without the smallest share of all layers that makes it fast enough."""
        for percent in range(30, 95, 3):
            model = copy.deepcopy(dense)
            rules = [{**LAYERS, "sparsity": percent / 100}]
            model = L1NormPruner(model, rules, example_inputs=self.example).compress()
            small: nn.Module = speedup(model, self.example).model
            if self.tried(small, f"uniform {percent} %") <= BUDGET:
                return small
        raise SystemExit("no uniform sparsity is fast enough.")

    def fastnas(self, dense: nn.Module) -> nn.Module:
        """Return the dense network as FastNAS prunes it, with as many operations as are fast enough.

        If no constraint that it can meet is, the fastest network it found.
        """
        tried: list[tuple[float, nn.Module]] = []
        with tempfile.TemporaryDirectory() as folder:
            for percent in range(60, 10, -3):
                example, kept = self.example[:1], Path(folder, "sensitivities.pth")
                share = percent / 100
                try:
                    small = fastnas(dense, share, example, self.batches, self.judged, kept).eval()
                except ValueError:  # it has no network with so few operations
                    break
                ratio = self.tried(small, f"FastNAS, {percent} % of the operations")
                tried.append((ratio, small))
                if ratio <= BUDGET:
                    break
        return min(tried, key=lambda x: x[0])[1]

    def tried(self, model: nn.Module, title: str) -> float:
        ratio = self.ratio(self.write("tried", model), runs=31)
        print(f"  {title}: latency {ratio:.3f}", flush=True)
        return ratio

    def with_bits(self, dense: nn.Module, bits: dict[str, Any]) -> list[dict[str, Any]]:
        return [*({**x, **bits} for x in choices(dense)), {"op_types": ["Linear"], **bits}]

    def searched(self, dense: nn.Module, rules: list[Any], name: str) -> Cut:
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
        """Train a network on, and return its figures as the written file has them."""
        untrained = accuracy(model, self.data.test)
        epochs, seed = self.options.tune_epochs, self.seed + 1000
        train(model, self.data, epochs, self.options.rate, 0.1, seed)
        work = macs(model.eval(), self.example)
        compressed: Any = model
        if bits:
            compressed = PTQQuantizer(model, bits, example_inputs=self.example, weights="mse")
            model = compressed.compress()
            compressed.calibrate(self.batches, progress=False)
        path = self.write(title, compressed)
        return {
            "accuracy": executed(open_file(path), *self.data.test),
            "before training on": untrained,
            "latency": self.ratio(path),
            "macs": work / macs(self.build().eval(), self.example),
        }

    def write(self, title: str, model: Any) -> Path:
        path = self.folder / f"{title}.onnx"
        export_onnx(model, path, self.example, check=False, dynamic_shapes=False)
        return path

    def ratio(self, path: Path, runs: int = 101) -> float:
        """Return the CPU time of a file in terms of the dense network's, in turns, on one thread."""
        files = [open_file(self.folder / "dense.onnx"), open_file(path)]
        one, two = (how_to_measure(file).caller(file, self.example) for file in files)
        return latency_ratio(one, two, runs)

    def timed(self, record: dict[str, Any]) -> None:
        """Note the latency of each file, all taking turns."""
        titles = [title for title in record if title != "dense"]
        files = [open_file(self.folder / f"{title}.onnx") for title in ["dense", *titles]]
        calls = [how_to_measure(file).caller(file, self.example) for file in files]
        whole, *others = (statistics.median(x) for x in time_calls(calls, 200, 4.0))
        for title, milliseconds in zip(titles, others, strict=True):
            record[title]["latency"] = milliseconds / whole
        record["dense"]["ms"] = whole


@torch.no_grad()
def executed(model: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy of a model, or of a file for as many images at a time."""
    pairs = zip(images.split(TIMED), labels.split(TIMED), strict=True)
    hits = [int((torch.as_tensor(model(x)).argmax(1) == y).sum()) for x, y in pairs]
    return sum(hits) / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["train", "time"])
    parser.add_argument("--data", choices=list(BUILD), default="cifar-10")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--dense", type=Path, nargs="+", help="state dict, one for all seeds or each"
    )
    parser.add_argument("--epochs", type=int, default=6, help="of the dense network")
    parser.add_argument("--tune-epochs", type=int, default=3, help="of each way from there")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of these")
    parser.add_argument("--trials", type=int, default=20, help="of the search")
    parser.add_argument("--images", type=int, help="train with so many, to try the script")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, records, cut = Data(options.data, options.images), [], dict[str, Cut]()
    for seed in range(options.seeds):
        runs = Runs(data, seed, options, cut)
        record = runs.train_all()
        if options.part == "time":
            runs.timed(record)
        records.append(record)
    if options.part == "time":
        unused = ("part", "dense", *(["epochs"] if options.dense else []))
        settings = {k: v for k, v in vars(options).items() if k not in unused}
        record = {"commands": [command()], "options": settings, "budget": BUDGET, "batch": TIMED}
        write_json(RESULTS / f"search_{options.data}.json", {**record, "seeds": records})


if __name__ == "__main__":
    main()
