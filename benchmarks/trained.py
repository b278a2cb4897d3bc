"""Quantize trained networks of real size, compared with float and with ONNX Runtime's own tools.

    ./run python benchmarks/trained.py                        # needs pip install '.[bench]'
    ./run python benchmarks/trained.py --networks lite0 --rounds 11

The CNNs classify 500 photos of groceries: ImageNet has no labels for them, so the score is how often
the most probable class is the float network's. MiniLM finds, for each of 500 news titles, the text that
belongs to it. stories15M reads stories (perplexity). Both tools get the same calibration data, and
everything is executed by ONNX Runtime: scores on all test data, latency as the CPU time of one example on
one thread, all files alternately in random order, each opened five times; a speedup is the median of the
per-round ratios to the float file. CPU seconds are the time to create the file from the PyTorch model, for
the peer including the float export that it starts from.
"""

from __future__ import annotations

import argparse
import copy
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import quant_peers as peers
import torch
from int8_latency import integer_layers
from record import RESULTS, measured, write_json
from runtime import File, all_outputs, float_file
from timing import call, parameters
from torch import Tensor
from trained_nets import CASES, TESTED, Case

from lilliput.torch import PTQQuantizer, export_onnx

Row = dict[str, Any]
OPENINGS = 5  # of each file while it is timed
PEERS = {
    "quantize_static": peers.quantize_static,
    "quantize_dynamic": peers.quantize_dynamic,
    "MatMulNBitsQuantizer": peers.quantize_groups,
}


def lilliput_file(case: Case, path: Path) -> None:
    quantizer = PTQQuantizer(copy.deepcopy(case.model), case.rules, **case.options)
    quantizer.compress()
    if case.calibration:
        quantizer.calibrate(case.calibration, forward=call, progress=False)
    export_onnx(quantizer, path, case.example if len(case.example) > 1 else case.example[0])


def make_files(case: Case, folder: Path) -> tuple[dict[str, Path], dict[str, float]]:
    """Return the files and the CPU seconds to create each."""
    files = {
        title: folder / f"{i}.onnx" for i, title in enumerate(("float", "Lilliput", case.peer))
    }
    makers: dict[str, Callable[[], Any]] = {
        "float": lambda: float_file(case.model, case.example, files["float"], case.open_axes),
        "Lilliput": lambda: lilliput_file(case, files["Lilliput"]),
        case.peer: lambda: PEERS[case.peer](files["float"], files[case.peer], case.calibration),
    }
    seconds = {}
    for title, make in makers.items():
        start = time.process_time()
        make()
        seconds[title] = time.process_time() - start
    seconds[case.peer] += seconds["float"]
    return files, seconds


def speedups(case: Case, paths: dict[str, Path], rounds: int) -> dict[str, dict[str, float]]:
    """Return the speed of each file relative to float, for each kind of input; "float again" shows the noise.

    The memory location of a session affects its speed, so every file is opened several times.
    """
    paths = paths | {"float again": paths["float"]}
    seconds: dict[str, dict[str, list[float]]] = {title: {} for title in paths}
    for _ in range(OPENINGS):
        opened = {
            title: File(path) for title, path in random.sample(sorted(paths.items()), len(paths))
        }
        for kind, inputs in case.timed().items():
            runs = {title: lambda file=file, x=inputs: file(*x) for title, file in opened.items()}
            for title, found in peers.side_by_side(runs, -(-rounds // OPENINGS)).items():
                seconds[title].setdefault(kind, []).extend(found)
    floats = seconds["float"]
    return {
        title: {kind: peers.ratio(floats[kind], found) for kind, found in kinds.items()}
        for title, kinds in seconds.items()
    }


def sqnr(wanted: Tensor, outputs: Tensor) -> float:
    """Return the ratio of the power of the float outputs to that of the difference, in decibels."""
    wanted, outputs = wanted.double(), outputs.double()
    return float(10 * torch.log10(wanted.square().sum() / (outputs - wanted).square().sum()))


def measure(case: Case, rounds: int, folder: Path) -> Row:
    print(f"\n{case.title}: {parameters(case.model) / 1e6:.1f} M parameters", flush=True)
    files, seconds = make_files(case, folder)
    opened = {title: File(path) for title, path in files.items()}
    speed = speedups(case, files, rounds)
    wanted = all_outputs(opened["float"], case.inputs, 20)
    rows = {}
    for title, file in opened.items():
        outputs = wanted if title == "float" else all_outputs(file, case.inputs, 20)
        row: Row = {"megabytes": file.bytes / 1e6, "speedups": speed[title]}
        row |= {"score": case.score(outputs, wanted), "cpu_seconds": seconds[title]}
        if title != "float":
            row |= {"integer_layers": integer_layers(files[title]), "sqnr": sqnr(wanted, outputs)}
        rows[title] = row
        print(f"  {title:<22}{show(case, row)}", flush=True)
    print(f"  float again: {speed['float again']}")
    record = {"title": case.title, "parameters": parameters(case.model), "measure": case.measure}
    return record | {"rows": rows, "float_again": speed["float again"]}


def show(case: Case, row: Row) -> str:
    speed = "  ".join(f"{value:.2f}x {kind}".strip() for kind, value in row["speedups"].items())
    text = f"{row['megabytes']:6.1f} MB  {speed}  {case.measure} {row['score']:.3f}"
    text += f"  {row['cpu_seconds']:.0f} CPU s"
    if "sqnr" in row:
        layers = "{} of {} on integers".format(*row["integer_layers"])
        text += f"  {row['sqnr']:.1f} dB  {layers}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=35)
    options = parser.parse_args()
    torch.set_num_threads(1)
    networks = {}
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            networks[name] = measure(CASES[name](), options.rounds, Path(folder))
    if options.networks == list(CASES):  # only a complete measurement is stored
        record = {"rounds": options.rounds, "tested": TESTED, "networks": networks}
        name = "trained" if "vnni" in measured()["flags"] else "trained_no_vnni"
        write_json(RESULTS / f"{name}.json", record)


if __name__ == "__main__":
    main()
