"""Measure how much faster int8 files are than float ones: ours and those of other toolkits.

    ./run python benchmarks/int8_latency.py
    ./run python benchmarks/int8_latency.py --networks resnet18 --only lilliput --rounds 11
    ./run python benchmarks/int8_latency.py --inductor      # torchao PT2E too; compiles for minutes

Batch 1, one thread, CPU time of the process; all files are timed alternately in random order, and a
speedup is the median of the per-round ratios to the float file in the same runtime. Also shown: the
SQNR of the output against the float model, for an input not used for calibration, first simulated (the
file in ONNX Runtime without graph optimization), then as executed (worse where 16-bit pair sums
saturate); how many layers ONNX Runtime executes as integers; the size of the file.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import quant_peers as peers
import torch
from networks import NETWORKS, make, random_inputs
from record import RESULTS, write_json
from timing import call, parameters
from torch import Tensor, nn

from lilliput.export.run import open_session

TARGETS = {"resnet18": 1.8, "resnet50": 1.8, "mobilenet_v2": 1.5, "encoder": 1.6}
SQNRS = ("simulated_sqnr", "executed_sqnr")
Run = Callable[[], np.ndarray]

# Runtimes


def onnxruntime_run(path: Path, example: Tensor, optimize: bool = True) -> Run:
    session = open_session(path, threads=1, is_optimized=optimize)
    feed = {session.get_inputs()[0].name: example.numpy()}
    return lambda: session.run(None, feed)[0]


def openvino_run(path: Path, example: Tensor) -> Run:
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape(list(example.shape))
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda: request.infer({0: example.numpy()})[0]


def integer_layers(path: Path) -> tuple[int, int]:
    """Return how many layers with a weight ONNX Runtime executes as integers, and the total number."""
    with tempfile.TemporaryDirectory() as folder:
        optimized = str(Path(folder) / "optimized.onnx")
        open_session(path, optimized=optimized)
        graph = onnx.load(optimized).graph
    weights = {tensor.name for tensor in graph.initializer if len(tensor.dims) > 1}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in weights:
            weights.add(node.output[0])
    layers = [
        node.op_type
        for node in graph.node
        if any(part in node.op_type for part in ("Conv", "MatMul", "Gemm", "LSTM"))
        and weights & set(node.input)
    ]
    names = ("QLinear", "QGemm", "Integer", "DynamicQuantize", "NBits")
    integer = [kind for kind in layers if any(name in kind for name in names)]
    return len(integer), len(layers)


# Files


def float_file(model: nn.Module, example: Tensor, path: Path) -> Path:
    with peers.quietly():
        inputs = {"input_names": ["x"], "external_data": False}
        torch.onnx.export(model, (example,), path, dynamo=True, verbose=False, **inputs)
    return path


def lilliput_file(
    model: nn.Module, example: Tensor, path: Path, batches: list[Tensor]
) -> tuple[Path, list[np.ndarray]]:
    """Return our file and the outputs of the simulation in PyTorch, also for an input changed by 1e-6.

    The second shows how much a single changed rounding affects an untrained network; no file
    can agree with the simulation better than the simulation with itself.
    """
    from lilliput.torch import PTQQuantizer, export_onnx

    model = copy.deepcopy(model)
    quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d", "Linear"]}])
    quantizer.compress()
    quantizer.calibrate(batches)
    export_onnx(quantizer, path, example, min_sqnr=0.0)  # the agreement is printed below
    changed = example * (1 + 1e-6 * random_inputs(example, 1, seed=3)[0])
    return path, [call(model, inputs).numpy() for inputs in (example, changed)]


def make_files(
    model: nn.Module, example: Tensor, folder: Path, only: str
) -> tuple[dict[str, Path], list[np.ndarray]]:
    """Return the files of all installed toolkits, and our simulation's outputs."""
    batches = random_inputs(example, 8)
    source = float_file(model, example, folder / "float.onnx")
    files: dict[str, Path] = {"float": source}
    simulated: list[np.ndarray] = []
    if only in "lilliput":
        files["lilliput"], simulated = lilliput_file(
            model, example, folder / "lilliput.onnx", batches
        )
    if only in "quantize_static":
        files["quantize_static"] = peers.quantize_static(source, folder / "ort.onnx", batches)
    if only in "nncf" and peers.installed("nncf"):
        files["nncf"] = peers.nncf_quantize(source, folder / "nncf.onnx", batches)
        if peers.installed("openvino"):
            files["nncf IR"] = peers.nncf_quantize(source, folder / "nncf.xml", batches)
    return files, simulated


# Measuring


def megabytes(path: Path) -> float:
    parts = (path, path.with_suffix(".bin"))  # OpenVINO's own format has a separate file of weights
    return sum(part.stat().st_size for part in parts if part.is_file()) / 1e6


def sqnr(output: np.ndarray, reference: np.ndarray) -> float:
    """Return the signal-to-noise ratio in dB."""
    error = np.square(output.astype(np.float64) - reference).mean()
    return 10 * math.log10(np.square(reference, dtype=np.float64).mean() / max(error, 1e-30))


def make_runs(
    files: dict[str, Path], model: nn.Module, example: Tensor, inductor: bool
) -> dict[str, Run]:
    """Return the functions to time, by ``runtime: file``."""
    onnx_files = {name: path for name, path in files.items() if path.suffix == ".onnx"}
    runs = {f"onnxruntime: {n}": onnxruntime_run(p, example) for n, p in onnx_files.items()}
    runs["onnxruntime: float again"] = onnxruntime_run(files["float"], example)
    if peers.installed("openvino"):
        runs |= {f"openvino: {n}": openvino_run(p, example) for n, p in files.items()}
    if inductor and peers.installed("torchao"):
        compiled = peers.inductor_runs(model, example, random_inputs(example, 8))
        runs |= {f"inductor: {n}": lambda run=run: run().numpy() for n, run in compiled.items()}
    return runs


def measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    model, example = make(name)
    reference = call(model, example).numpy()
    files, simulated = make_files(model, example, folder, options.only)
    runs = make_runs(files, model, example, options.inductor)
    seconds = peers.side_by_side(runs, options.rounds)
    rows = {}
    for title, run in runs.items():
        runtime, _, file = title.partition(": ")
        row: dict[str, Any] = {"milliseconds": 1000 * statistics.median(seconds[title])}
        row["speedup"] = peers.ratio(seconds[f"{runtime}: float"], seconds[title])
        if not file.startswith("float"):
            row["executed_sqnr"] = sqnr(run(), reference)
        if runtime == "onnxruntime" and "executed_sqnr" in row:
            row["simulated_sqnr"] = sqnr(onnxruntime_run(files[file], example, False)(), reference)
            row["integer_layers"] = integer_layers(files[file])
        if runtime != "inductor" and file in files:
            row["megabytes"] = megabytes(files[file])
        rows[title] = row
    record: dict[str, Any] = {"parameters": parameters(model), "rows": rows}
    if simulated:
        executed, (wanted, changed) = runs["onnxruntime: lilliput"](), simulated
        record["lilliput_simulation"] = {
            "simulated_sqnr": sqnr(wanted, reference),
            "executed_against_simulated_sqnr": sqnr(executed, wanted),
            "simulated_against_itself_sqnr": sqnr(changed, wanted),
        }
    return record


def show(name: str, record: dict[str, Any]) -> None:
    print(f"\n{name} ({record['parameters'] / 1e6:.1f} M parameters)")
    heads = ("ms", "speedup", "simulated", "executed", "integers", "MB")
    print(f"{'':30}" + "".join(f"{head:>10}" for head in heads))
    for title, row in record["rows"].items():
        cells = [f"{row['milliseconds']:.2f}", f"{row['speedup']:.2f}x"]
        cells += [f"{row[key]:.1f} dB" if key in row else "" for key in SQNRS]
        cells.append("{} of {}".format(*row["integer_layers"]) if "integer_layers" in row else "")
        cells.append(f"{row['megabytes']:.1f}" if "megabytes" in row else "")
        target = f"   target {TARGETS[name]}x" if title == "onnxruntime: lilliput" else ""
        print(f"  {title:<28}" + "".join(f"{cell:>10}" for cell in cells) + target)
    if "lilliput_simulation" in record:
        own, executed, itself = record["lilliput_simulation"].values()
        print(
            f"  lilliput simulated in PyTorch: {own:.1f} dB; executed agrees with it to {executed:.1f} dB, "
            f"it with itself, for an input changed by 1e-6, to {itself:.1f} dB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", default="", help="lilliput, quantize_static or nncf")
    parser.add_argument("--inductor", action="store_true", help="torchao as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    results = {}
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(name, options, Path(folder))
        show(name, results[name])
        sys.stdout.flush()
    if not options.only and len(results) == len(NETWORKS):
        record = {"rounds": options.rounds, "networks": results}
        write_json(RESULTS / "int8_latency.json", record)


if __name__ == "__main__":
    main()
