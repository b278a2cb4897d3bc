"""Find where speedup works, and whether the smaller model computes the same as the masked one.

    ./run python -m pip install --constraint constraints.txt '.[bench]'
    ./run python benchmarks/speedup_coverage.py

Every model of the zoo, in its own process: prune half of every layer, record the masked model's outputs,
speed it up, and compare; in float32 and again in float64. Torch-Pruning runs on the same models.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import Any

import torch
from coverage_table import markdown, summary
from outputs import deviation
from record import RESULTS, write_json
from timing import call, latency_ratio, macs, parameters
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import ZOO, Entry, add_transformers

RESULT = RESULTS / "speedup_coverage.json"
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
PROCESSES = multiprocessing.get_context("forkserver")  # imports once, then forks for each model
FLOAT32_INSIDE = 1e-5  # for models that cast to float32 whatever their input


def prune_and_speed_up(model: torch.nn.Module, inputs: Any) -> dict[str, Any]:
    """Return the masked model's outputs, the small model, its kind, and CPU seconds.

    Nothing else in this benchmark calls the library.
    """
    from lilliput.torch import L1NormPruner, speedup

    start = time.process_time()
    rules = [{"op_types": ["default"], "sparsity": 0.5}]
    pruner = L1NormPruner(model, rules, example_inputs=inputs)
    pruner.compress()
    seconds = time.process_time() - start
    masked = call(model, inputs)
    start = time.process_time()
    result = speedup(model, inputs)
    seconds += time.process_time() - start
    kind = str(getattr(result.kind, "value", result.kind))
    return {"masked": masked, "model": result.model, "kind": kind, "seconds": seconds}


def run_ours(entry: Entry, dtype: torch.dtype) -> dict[str, Any]:
    """Prune, speed up, compare and measure one model in one precision."""
    from lilliput.errors import LilliputError

    original = in_precision(entry.build(), dtype)
    inputs = in_precision(entry.inputs(), dtype)
    dense = call(original, inputs)
    try:
        done = prune_and_speed_up(in_precision(entry.build(), dtype), inputs)
        received = call(done["model"], inputs)
    except Exception as error:
        status = "refused" if isinstance(error, LilliputError) else "crash"
        text = " ".join(str(error).split())[:400]
        return {"status": status, "message": f"{type(error).__name__}: {text}"}
    error = deviation(done["masked"], received)
    limit = TOLERANCE[dtype]
    record: dict[str, Any] = {"kind": done["kind"], "seconds": done["seconds"]}
    if math.isfinite(error):
        record["error"] = error
    else:
        record["message"] = "the outputs have other shapes or are not finite"
    if dtype == torch.float64 and makes_float32(original, inputs):
        record["float32_inside"] = True
        limit = FLOAT32_INSIDE
    record["status"] = "equal" if error <= limit else "wrong"
    record["masked_deviation"] = deviation(dense, done["masked"])
    record["parameters_kept"] = parameters(done["model"]) / parameters(original)
    if dtype == torch.float32:
        record["macs_kept"] = macs(done["model"], inputs) / max(1, macs(original, inputs))
        record["latency_ratio"] = latency_ratio(
            lambda: call(original, inputs), lambda: call(done["model"], inputs)
        )
    return record


def in_precision(value: Any, dtype: torch.dtype) -> Any:
    """Convert a model, or the floating-point tensors of its inputs."""
    if isinstance(value, dict):
        return {key: in_precision(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(in_precision(item, dtype) for item in value)
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        return value
    return value.to(dtype)


def makes_float32(model: torch.nn.Module, inputs: Any) -> bool:
    """Whether a float64 model computes anything in float32."""

    class Watch(TorchDispatchMode):
        seen = False

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = function(*args, **(kwargs or {}))
            made = result if isinstance(result, list | tuple) else [result]
            Watch.seen |= any(getattr(tensor, "dtype", None) == torch.float32 for tensor in made)
            return result

    with Watch():
        call(model, inputs)
    return Watch.seen


def work(side: str, name: str, results: Connection) -> None:
    """Run one side on one model and send a record whenever there is something to store."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    add_transformers()
    if side == "peer":
        from peer import run_peer

        results.send({"peer": run_peer(ZOO[name])})
        return
    for dtype in (torch.float32, torch.float64):
        results.send({str(dtype).removeprefix("torch."): run_ours(ZOO[name], dtype)})


def in_process(side: str, name: str, timeout: float) -> dict[str, Any]:
    """Start a process for one model; whatever it does, return a record."""
    results, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(side, name, sender))
    process.start()
    sender.close()
    record: dict[str, Any] = {}
    failure = f"no result in {timeout:.0f} s"
    deadline = time.monotonic() + timeout
    try:
        while results.poll(max(0.0, deadline - time.monotonic())):
            record |= results.recv()
    except EOFError:
        process.join()
        failure = f"the process ended with code {process.exitcode}"
    process.kill()
    process.join()
    expected = ["peer"] if side == "peer" else ["float32", "float64"]
    status = "fail" if side == "peer" else "crash"
    return {key: record.get(key, {"status": status, "message": failure}) for key in expected}


def run_entry(name: str, earlier: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    record: dict[str, Any] = {"family": ZOO[name].family}
    if not options.no_ours:
        record |= in_process("ours", name, options.timeout)
    if options.reuse_peer and "peer" in earlier:
        record["peer"] = earlier["peer"]
    elif not options.no_peer:
        record |= in_process("peer", name, options.timeout)
    return {**earlier, **record}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "torch-pruning")}


def chosen(patterns: list[str] | None) -> list[str]:
    if not patterns:
        return list(ZOO)
    names = [name for name in ZOO if any(fnmatch.fnmatch(name, p) for p in patterns)]
    if not names:
        raise SystemExit(f"no model matches {patterns}; the zoo has {', '.join(ZOO)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names or patterns like 'hf_*'")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120, help="seconds per model and side")
    parser.add_argument("--no-peer", action="store_true", help="leave Torch-Pruning out")
    parser.add_argument("--no-ours", action="store_true", help="run only Torch-Pruning")
    parser.add_argument("--reuse-peer", action="store_true", help="keep its earlier results")
    parser.add_argument("--markdown", action="store_true", help="print the table of the results")
    options = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.is_file() else {"models": {}}
    if options.markdown:
        print(markdown(results["models"]))
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    PROCESSES.set_forkserver_preload(["zoo.hf_text", "zoo.hf_vision", "torch_pruning"])
    add_transformers()
    models = {name: results["models"].get(name, {}) for name in ZOO}

    def run(name: str) -> None:
        models[name] = run_entry(name, models[name], options)
        print(summary(name, models[name]), flush=True)
        write_json(RESULT, {"versions": versions(), "models": models})

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, chosen(options.only)))
    print(markdown(models))


if __name__ == "__main__":
    main()
