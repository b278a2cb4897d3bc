"""Measure the accuracy of quantization on real data, as executed by ONNX Runtime.

    ./run python benchmarks/quantization_accuracy.py                    # everything; half an hour
    ./run python benchmarks/quantization_accuracy.py --only low_bits    # or int8, minilm
    pip install transformers                                            # needed for minilm only

``int8``: a ResNet with batch norms on Fashion-MNIST, 8 bits, calibrated or trained for one more epoch.
``low_bits``: the same network with 4 bits, first and last layer with 8; all trained variants have the same
few epochs, and so has a float control. ``minilm``: the linear layers of all-MiniLM-L6-v2 in 8 bits;
the task is to find the news that belongs to a title.

Every row is exported, and all test data are run through the file in ONNX Runtime. They are not used for
decisions, with one exception: that MiniLM is calibrated without padding was chosen after a first run on
one set of news, by the cosine to float on 96 of the texts. The trained float network is kept in the
data cache.
"""

from __future__ import annotations

import argparse
import copy
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from archives import cache_folder
from quant_peers import quietly
from record import RESULTS, write_json
from retrieval import Retrieval, load_embedder
from runtime import File, all_outputs, float_file
from safetensors.torch import load_file, save_file
from structured_accuracy import Data, build_model, new_optimizer, train
from timing import call, latency_ratio, parameters
from torch import Tensor, nn

import lilliput
from lilliput.errors import ExportError
from lilliput.export.guard.cpu import cpu_has_wide_dot
from lilliput.torch import (
    LSQPlusQuantizer,
    LSQQuantizer,
    PTQQuantizer,
    QATQuantizer,
    export_onnx,
)

WIDTHS = (16, 32, 80)
FIRST, LAST = "0", "11"  # the names of the first convolution and of the classifier
TRAINED = {"QAT": QATQuantizer, "LSQ": LSQQuantizer, "LSQ+": LSQPlusQuantizer}
Row = dict[str, Any]


# The convolutional network


class Network:
    """The trained float network, its data, and how everything derived from it is measured."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.data = Data()
        torch.manual_seed(options.seed)
        self.model = build_model(WIDTHS)
        key = f"seed{options.seed}_epochs{options.epochs}"
        self.train_seconds = self.kept(key, self.model, 0.2, options.epochs, warm_up=0.2)
        self.model.eval()
        order = torch.randperm(60000, generator=torch.Generator().manual_seed(options.seed))
        inside = self.data.train_x[order[:1024], :, 2:-2, 2:-2]
        self.calibration = list(inside.contiguous().split(128))
        self.example = self.calibration[0][:16]
        self.float_file = float_file(self.model, (self.example,), folder / "float.onnx")
        self.float_right = self.predictions(self.float_file) == self.data.test_y

    def kept(self, key: str, model: nn.Module, rate: float, epochs: int, warm_up: float) -> float:
        """Train a model or load the result of an earlier run; return the CPU seconds it took."""
        path = cache_folder() / "checkpoints" / f"fashion_quantization_{key}.safetensors"
        path.parent.mkdir(exist_ok=True)
        if not path.is_file():
            seconds = self.train(model, new_optimizer(model, rate), epochs, warm_up)
            state = {name: x.contiguous() for name, x in model.state_dict().items()}
            partial = path.with_suffix(".partial")
            save_file(state | {"train_seconds": torch.tensor(seconds)}, partial)
            partial.replace(path)
        state = load_file(path)
        seconds = state.pop("train_seconds").item()
        model.load_state_dict(state)
        return seconds

    def train(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int, warm_up: float
    ) -> float:
        start = time.process_time()
        train(model, optimizer, self.data, epochs, self.options.seed, warm_up)
        return time.process_time() - start

    def accuracy(self, predicted: Tensor) -> float:
        return share(predicted == self.data.test_y)

    def predictions(self, model: Callable[..., Tensor]) -> Tensor:
        return all_outputs(model, (self.data.test_x,), 500).argmax(1)

    def float_row(self, title: str, model: nn.Module, file: File) -> Row:
        return {
            "title": title,
            "executed": self.accuracy(self.predictions(file)),
            "simulated": self.accuracy(self.predictions(model.eval())),
            "bytes": file.bytes,
            **versus(self.predictions(file) == self.data.test_y, self.float_right),
        }

    def row(self, title: str, quantizer: Any) -> Row:
        """Return the figures of a quantized model, simulated and executed."""
        path, model = self.folder / "quantized.onnx", quantizer.bound_model.eval()
        row: Row = {"title": title, "simulated_unguarded": self.accuracy(self.predictions(model))}
        row |= export(quantizer, path, self.example, self.calibration)
        simulated = self.predictions(model)  # as changed by the saturation guard
        file = File(path)
        executed = self.predictions(file)
        row |= {"simulated": self.accuracy(simulated), "executed": self.accuracy(executed)}
        row["agreement"] = share(simulated == executed)
        row |= versus(executed == self.data.test_y, self.float_right)
        row["time_ratio"] = latency_ratio(
            lambda: self.float_file(self.example), lambda: file(self.example), runs=101
        )
        return row

    def calibrated(self, title: str, rules: list[Row], **settings: Any) -> Row:
        """Quantize without training."""
        start = time.process_time()
        quantizer = PTQQuantizer(copy.deepcopy(self.model), rules, **settings)
        quantizer.compress()
        quantizer.calibrate(self.calibration, progress=False)
        seconds = time.process_time() - start
        return report(self.row(title, quantizer) | {"cpu_seconds": seconds})

    def trained(
        self, title: str, algorithm: Any, rules: list[Row], epochs: int, rate: float
    ) -> Row:
        """Quantize and train further."""
        model = copy.deepcopy(self.model)
        optimizer = new_optimizer(model, rate)
        quantizer = algorithm(model, rules, optimizer, example_inputs=self.example)
        quantizer.compress()
        seconds = self.train(model, optimizer, epochs, warm_up=0.1)
        return report(self.row(title, quantizer) | {"cpu_seconds": seconds})

    def control(self, epochs: int, rate: float) -> Row:
        """The float network trained equally long, so that training is not mistaken for quantization."""
        model = copy.deepcopy(self.model)
        options = self.options
        key = f"seed{options.seed}_epochs{options.epochs}+{epochs}_rate{rate}"
        seconds = self.kept(key, model, rate, epochs, warm_up=0.1)
        file = float_file(model.eval(), (self.example,), self.folder / "control.onnx")
        title = f"float, {count(epochs)} more"
        return report(self.float_row(title, model, file) | {"cpu_seconds": seconds})

    def start(self) -> Row:
        row = self.float_row("float", self.model, self.float_file)
        return report(
            row | {"parameters": parameters(self.model), "cpu_seconds": self.train_seconds}
        )


def int8(options: argparse.Namespace, folder: Path) -> list[Row]:
    network, epochs, rate = Network(options, folder), 1, 0.005
    rules = [{"op_types": ["Conv2d", "Linear"]}]
    return [
        network.start(),
        network.calibrated("PTQ", rules),
        network.trained(f"QAT, {count(epochs)}", QATQuantizer, rules, epochs, rate),
        network.control(epochs, rate),
    ]


def low_bits(options: argparse.Namespace, folder: Path) -> list[Row]:
    network, epochs, rate = Network(options, folder), options.tune_epochs, 0.02
    adaround = {"weights": "mse", "adaround": True, "bias_correction": True}
    rows = [network.start()]
    for weight, other in ((8, 8), (4, 8), (4, 4)):
        name = f"W{weight}A{other}"
        some = bits(weight, other, "minmax"), bits(weight, other, "mse")
        rows.append(network.calibrated(f"{name}, PTQ, min-max", some[0]))
        rows.append(network.calibrated(f"{name}, PTQ, MSE", some[1], weights="mse"))
        if weight == 4:
            title = f"{name}, PTQ, AdaRound and bias correction"
            rows.append(network.calibrated(title, some[1], **adaround))
    for name, algorithm in TRAINED.items():
        title = f"W4A4, {name}, {count(epochs)}"
        rows.append(network.trained(title, algorithm, bits(4, 4), epochs, rate))
    rows.append(network.control(epochs, rate))
    return with_recovery(rows)


def bits(weight: int, other: int, observer: str | None = None) -> list[Row]:
    """Return rules for weights and activations; first and last layer have 8 bits."""
    rules = [
        {"op_types": ["Conv2d"], "quant_bits": {"weight": weight, "input": other, "output": other}},
        {"op_names": [FIRST, LAST], "quant_bits": {"weight": 8, "input": 8}},
    ]
    return [rule | ({"observer": observer} if observer else {}) for rule in rules]


def with_recovery(rows: list[Row]) -> list[Row]:
    """Add the share of min-max's loss, with the same bits, that the others avoid."""
    start = rows[0]["executed"]
    losses = {
        row["title"][:4]: start - row["executed"] for row in rows if "min-max" in row["title"]
    }
    for row in rows:
        loss = losses.get(row["title"][:4], 0.0)
        if loss > 0.01:  # less is mostly random
            row["recovered"] = 1 - (start - row["executed"]) / loss
    return rows


# The transformer


def minilm_rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    model, tokenizer = load_embedder()
    task = Retrieval(tokenizer, options.pairs, options.sets, options.seed)
    example = tuple(x[:4] for x in task.padded[-1])
    file = float_file(model, example, folder / "float.onnx")
    reference = all_outputs(file, task.inputs, 50)
    start = {"title": "float", "executed": share(task.found(reference)), "bytes": file.bytes}
    rows = [report(start)]
    for title, settings in (("PTQ", {}), ("PTQ, SmoothQuant", {"smooth": 0.5})):
        began = time.process_time()
        quantizer = PTQQuantizer(copy.deepcopy(model), [{"op_types": ["Linear"]}], **settings)
        quantizer.compress()
        quantizer.calibrate(task.calibration, forward=call, progress=False)
        row: Row = {"title": title, "cpu_seconds": time.process_time() - began}
        if settings and not changed(model, quantizer.bound_model):
            row["title"] += " (applies to no norm here: as above)"
        else:
            row |= retrieval_row(quantizer, task, reference, file, folder)
        rows.append(report(row))
    return rows


def changed(before: nn.Module, after: nn.Module) -> int:
    """Return how many parameters SmoothQuant has rescaled: none if no norm is read by layers only."""
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return sum(not torch.equal(x, y) for x, y in pairs)


def retrieval_row(
    quantizer: Any, task: Retrieval, reference: Tensor, float_model: File, folder: Path
) -> Row:
    path, example = folder / "quantized.onnx", tuple(x[:4] for x in task.padded[-1])
    row = export(quantizer, path, example, task.padded)
    file = File(path)
    executed = all_outputs(file, task.inputs, 50)
    simulated = all_outputs(quantizer.bound_model, task.first_set(), 50)
    found, once = task.found(executed), task.found(simulated)
    row |= {"executed": share(found), **versus(found, task.found(reference))}
    row |= {"simulated_first_set": share(once), "executed_first_set": share(found[: task.pairs])}
    row["agreement"] = share(once == found[: task.pairs])
    row["cosine"] = (executed * reference).sum(1).mean().item()
    row["time_ratio"] = latency_ratio(lambda: float_model(*example), lambda: file(*example), 31)
    return row


# Results


def share(answers: Tensor) -> float:
    return answers.double().mean().item()


def versus(right: Tensor, reference: Tensor) -> Row:
    """Return how many more answers are right than those of the float model, and its standard error."""
    gains = right.double() - reference.double()
    return {
        "difference": gains.mean().item(),
        "difference_error": gains.std().item() / len(gains) ** 0.5,
    }


def count(epochs: int) -> str:
    return f"{epochs} epoch{'s' if epochs > 1 else ''}"


def export(quantizer: Any, path: Path, example: Any, calibration: Any = None) -> Row:
    """Write a file and return its figures; if the check rejects it, also why."""
    facts: Row = {}
    with quietly():
        try:
            result = export_onnx(quantizer, path, example, calibration=calibration)
        except ExportError as error:  # also a result; the rest shows how good the file is
            facts["refused"] = str(error)
            result = export_onnx(quantizer, path, example, calibration=calibration, min_sqnr=0)
    executed = result.runtimes["onnxruntime"].to_dict()
    return facts | {
        "bytes": result.bytes,
        "integer_layers": sum(layer.integer for layer in result.layers),
        "layers": len(result.layers),
        "integer_share": result.integer_share,
        "guarded": [one.layer for one in result.guarded],
        "sqnr_executed_simulated": executed["sqnr"],
        "notes": result.notes,
    }


def report(row: Row) -> Row:
    """Print a row as soon as it is complete."""
    plain = {key: value for key, value in row.items() if key not in ("title", "guarded", "notes")}
    texts = [f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in plain.items()]
    print(f"{row['title']}: {', '.join(texts)}", flush=True)
    return row


COLUMNS: dict[str, Callable[[Row], str]] = {
    "executed": lambda row: f"{row['executed']:.2%}",
    "points against float": lambda row: (
        f"{100 * row['difference']:+.2f} ± {100 * row['difference_error']:.2f}"
        if row["difference_error"]
        else ""
    ),
    "simulated": lambda row: f"{row['simulated']:.2%}",
    "recovered": lambda row: f"{row['recovered']:.0%}",
    "same answers": lambda row: f"{row['agreement']:.2%}",
    "cosine to float": lambda row: f"{row['cosine']:.4f}",
    "integer layers": lambda row: f"{row['integer_layers']} of {row['layers']}",
    "file": lambda row: f"{row['bytes'] / 1e6:.2f} MB",
    "time": lambda row: f"{row['time_ratio']:.2f}",
}


def show_table(rows: list[Row]) -> None:
    """Print rows as a Markdown table, without empty columns."""
    body = [[cell(column, row) for column in COLUMNS.values()] for row in rows]
    used = [i for i in range(len(COLUMNS)) if any(cells[i] for cells in body)]
    print("\n| | " + " | ".join(list(COLUMNS)[i] for i in used) + " |")
    print("|---" * (len(used) + 1) + "|")
    for row, cells in zip(rows, body, strict=True):
        print(f"| {row['title']} | " + " | ".join(cells[i] for i in used) + " |")
    print(flush=True)


def cell(column: Callable[[Row], str], row: Row) -> str:
    try:
        return column(row)
    except KeyError:
        return ""


PARTS = {"int8": int8, "low_bits": low_bits, "minilm": minilm_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--epochs", type=int, default=6, help="training of the float network")
    parser.add_argument("--tune-epochs", type=int, default=2, help="training with few bits")
    parser.add_argument("--pairs", type=int, default=1000, help="news in a set for MiniLM")
    parser.add_argument("--sets", type=int, default=3, help="sets of news for MiniLM")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    versions = {"lilliput": lilliput.__version__, "torch": torch.__version__}
    versions |= {"onnxruntime": onnxruntime.__version__, "python": platform.python_version()}
    for name in options.only:
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            rows = PARTS[name](options, Path(folder))
        show_table(rows)
        seconds = time.process_time() - start
        print(f"{name}: {seconds / 60:.1f} minutes of CPU")
        record: Row = {"options": vars(options), "versions": versions, "vnni": cpu_has_wide_dot()}
        record |= {"cpu_seconds": seconds, "rows": rows}
        write_json(RESULTS / f"quantization_accuracy_{name}.json", record)


if __name__ == "__main__":
    main()
