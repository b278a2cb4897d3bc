"""Export one trained network to every target of Lilliput: agreement, size, and speed relative to float.

    ./run python benchmarks/targets.py --json benchmarks/results/targets.json

Each target's int8 file is executed alternately with the float file of the same target, on one thread, and CPU
times are compared; the outputs are compared with the simulation.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import write_json
from trained_nets import lite_case

from lilliput.export.targets.table import targets_of
from lilliput.torch import PTQQuantizer, open_file

RULES = [{"op_types": ["Conv2d", "Linear"], "quant_types": ["weight", "input", "output"]}]


def time_ratio(before: Callable[[], Any], after: Callable[[], Any], runs: int) -> float:
    """Return how many times as fast ``after`` is, by the CPU time of the whole process."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for index in range(runs + 3):
        for call, kept in zip((before, after), seconds, strict=True):
            start = time.process_time()
            call()
            if index >= 3:  # the first ones warm up
                kept.append(time.process_time() - start)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def measure(target: Any, case: Any, quantizer: Any, folder: Path, runs: int) -> dict[str, Any]:
    """Return the figures of one target."""
    path, x = folder / f"lite0{target.suffix}", case.inputs[0]
    start = time.process_time()
    result = target.writer("torch").load()(quantizer, path, x[:2], calibration=[x[2:6]])
    seconds = time.process_time() - start
    plain = folder / f"float{target.suffix}"
    result._write_float(plain)
    files = [open_file(place, threads=1) for place in (plain, path)]
    found = result.runtimes[target.runtime]
    outputs = [torch.cat([file(part) for part in x[:200].split(50)]) for file in files]
    with torch.no_grad():
        simulated = torch.cat([case.model(part) for part in x[:200].split(50)])
    return {
        "bytes": files[1].bytes,
        "smaller": files[0].bytes / files[1].bytes,
        "sqnr": found.sqnr,
        "worst_step": found.local_lsb,
        "integer_share": result.integer_share,
        "same_class_as_simulation": (outputs[1].argmax(1) == simulated.argmax(1)).float().mean(),
        "same_class_as_float": (outputs[1].argmax(1) == outputs[0].argmax(1)).float().mean(),
        "faster": time_ratio(lambda: files[0](x[:1]), lambda: files[1](x[:1]), runs),
        "export_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of targets")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = lite_case("lite0", 224)
    quantizer = PTQQuantizer(case.model, RULES, example_inputs=case.inputs[0][:2])
    quantizer.compress()
    quantizer.calibrate(case.calibration)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in targets_of("torch"):
            if not args.only or target.name in args.only:
                found = measure(target, case, quantizer, Path(folder), args.runs)
                rows[target.name] = {key: round(float(x), 4) for key, x in found.items()}
                print(target.name, rows[target.name], flush=True)
    if args.json is not None:
        write_json(args.json, {"network": case.title, "rows": rows})


if __name__ == "__main__":
    main()
