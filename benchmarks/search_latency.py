"""Compare the latency estimated by the table of a search with measurements, for random networks.

    ./run python benchmarks/search_latency.py make     # write the networks
    ./run python benchmarks/search_latency.py time     # on a quiet machine: nothing but timing

EfficientNet-Lite0 with random shares of its channels removed, cut and quantized to 8 bits (``int8``),
or with random layers in 8 bits or floating point (``mixed``). Some networks fill the latency table,
others are estimated from it and measured, alternating between original and network in ONNX Runtime, by
the CPU time of one thread; MACs are compared as a predictor. Some are measured twice, to separate the
error of measurements from that of estimates.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from archives import cache_folder
from record import RESULTS, command, read_json, write_json
from scipy.stats import spearmanr
from trained_nets import lite_case

from lilliput.search.candidate import Candidate, Maker, target_of
from lilliput.search.costs import Counts
from lilliput.search.journal import Journal
from lilliput.search.latency import Network, TimedLayer
from lilliput.search.solve import Choice, total
from lilliput.search.space import Space
from lilliput.search.timing import Clock

RESULT = RESULTS / "search_latency.json"
LAYERS = {"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}}
RULES = {
    "int8": [{**LAYERS, "quant_bits": 8}],
    "mixed": [{**LAYERS, "quant_bits": {"choose": [None, 8]}}],
}
AGAIN = 5  # networks that are measured twice


class Prepared(Maker):
    """Loads networks from files that were written before."""

    def __init__(self, space: Space, data: Any, folder: Path) -> None:
        super().__init__(space, data, "none", {}, target_of("onnxruntime", "torch"))
        self.folder = folder

    def path(self, choice: Choice) -> Path:
        return self.folder / f"{''.join(map(str, choice))}.onnx"

    def prepare(self, choice: Choice) -> None:
        if not self.path(choice).is_file():
            partial = self.folder / "partial.onnx"
            super().write(super().draft(choice), partial)
            partial.replace(self.path(choice))

    def draft(self, choice: Any) -> Candidate:
        return Candidate(choice, choice)

    def write(self, candidate: Candidate | None, path: Path, check: bool = False) -> Any:
        if candidate is None:
            return super().write(None, path, check)
        shutil.copy(self.path(candidate.model), path)
        return SimpleNamespace(bytes=path.stat().st_size)


class Bench:
    """The networks of one kind, and the clock that times them."""

    def __init__(self, kind: str) -> None:
        case = lite_case("lite0", 224)
        self.folder = cache_folder() / "search-latency" / kind
        self.folder.mkdir(parents=True, exist_ok=True)
        self.space = Space(case.model, RULES[kind], case.example[0])
        self.maker = Prepared(self.space, case.calibration[:1], self.folder)
        original = self.maker.write_original(self.folder, Journal(self.folder, {}))
        self.counts = Counts(self.space)
        tables = self.folder / f"tables-{time.time_ns()}"
        tables.mkdir()
        self.clock = Clock(self.maker, self.counts, original, tables)

    def make(self, networks: int, count: int, seed: int) -> None:
        """Write the networks for the table, which are those that a search would time, and random ones."""
        chosen: list[Choice] = []

        def note(choice: Choice, _: Candidate) -> None:
            layers = {
                name: TimedLayer(shape=list(shape), kind=kind, share=1.0)
                for name, (shape, kind) in self.clock.describe(choice).items()
            }
            network = Network(choice=list(choice), layers=layers, ratio=1.0)
            self.clock.table.add(self.clock.id, 1.0, network)
            chosen.append(choice)

        self.clock.measure = note  # type: ignore[method-assign, assignment]
        self.clock.fill(networks, seed)
        rng, drawn = np.random.default_rng(seed + 1), []
        for _ in range(count):
            # Networks of all sizes: each has its own probability of aggressive alternatives.
            chance = rng.uniform()
            drawn.append(tuple(int(rng.binomial(n - 1, chance)) for n in self.space.sizes))
        for number, choice in enumerate([*chosen, *drawn]):
            self.maker.prepare(choice)
            print(f"{number + 1} of {networks + count} networks are written", flush=True)
        choices = {"command": command(), "table": chosen, "random": drawn}
        (self.folder / "choices.json").write_text(json.dumps(choices))

    def time(self) -> dict[str, Any]:
        """Time all networks, and return the errors of estimates."""
        choices = json.loads((self.folder / "choices.json").read_text())
        clock, macs = self.clock, self.counts.macs()
        for choice in map(tuple, choices["table"]):
            clock.measure(choice, self.maker.draft(choice))
        terms, said = clock.terms(), clock.times.error()
        whole = total(macs, (0,) * len(self.space.sizes))
        rows, again = [], []
        for number, choice in enumerate(map(tuple, choices["random"])):
            ratio, _ = clock.measure(choice, self.maker.draft(choice))
            rows.append([total(terms, choice), ratio, total(macs, choice) / whole])
            print(f"estimated {rows[-1][0]:.3f}, measured {ratio:.3f}", flush=True)
            if number < AGAIN:
                again.append(clock.compare(self.maker.path(choice))[0] / ratio - 1)
        estimated, real, work = np.array(rows).T
        scale = float(np.median(real / work))
        return {
            "networks timed for the table": len(choices["table"]),
            "random networks": len(rows),
            "mean error": float(np.abs(estimated / real - 1).mean()),
            "largest error": float(np.abs(estimated / real - 1).max()),
            "rank correlation": float(spearmanr(estimated, real).statistic),
            "mean error by MACs": float(np.abs(scale * work / real - 1).mean()),
            "rank correlation by MACs": float(spearmanr(work, real).statistic),
            "error that the table expects": said,
            "measured again": float(np.abs(again).mean()),
            "original, ms": clock.milliseconds,
            "commands": [choices["command"], command()],
            "threads": torch.get_num_threads(),
            "batch": len(self.space.example_inputs),
            "estimated, measured, MACs": rows,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["make", "time"])
    parser.add_argument("--kind", choices=list(RULES), default="int8")
    parser.add_argument("--random", type=int, default=50, help="networks to compare estimates with")
    parser.add_argument("--networks", type=int, default=16, help="networks for the latency table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    bench = Bench(options.kind)
    if options.part == "make":
        bench.make(options.networks, options.random, options.seed)
        return
    start, found = time.perf_counter(), bench.time()
    found["minutes"] = (time.perf_counter() - start) / 60
    print({k: v for k, v in found.items() if not isinstance(v, list)})
    record = read_json(options.output)
    kinds = {**record.get("kinds", {}), options.kind: found}
    ran = [x for kind in kinds.values() for x in kind.get("commands", [])]
    write_json(options.output, {"commands": ran, "kinds": kinds}, record)


if __name__ == "__main__":
    main()
