"""Search on a trained network: bits under an average, what scores cost, and latency as estimated.

    ./run python benchmarks/search.py bits scores latency

EfficientNet-Lite0 of the package index, on photographs; sensitivities and calibration see photographs that
are not in the test. Nothing is trained.

- ``bits``: weights of 4 or 8 bits, 5 on average; agreement with the float network, beside 4 bits for all.
- ``scores``: the sensitivities of all layers and choices against trying them one at a time: CPU time, and
  rank correlation with the divergence of the outputs.
- ``latency``: random networks, cut and quantized, timed against what the latency table expects, beside
  MACs as predictor; networks and original take turns in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import measured, write_json
from scipy.stats import spearmanr
from torch import Tensor, nn
from trained_nets import Case, lite_case

from lilliput.search.candidate import Maker, target_of
from lilliput.search.costs import Counts
from lilliput.search.journal import Journal
from lilliput.search.scores import find_scores
from lilliput.search.solve import total
from lilliput.search.space import Space
from lilliput.search.timing import Clock
from lilliput.torch import PTQQuantizer, Search

RESULT = Path(__file__).parent / "results" / "search.json"
LAYERS = {"op_types": ["Conv2d", "Linear"]}
BITS = [{**LAYERS, "quant_types": ["weight"], "quant_bits": {"choose": [4, 8]}}]
WIDTHS = [{**LAYERS, "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}, "quant_bits": 8}]


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(25)])


def agreement(case: Case, x: Tensor) -> Any:
    wanted = outputs(case.model, x).argmax(1)
    return lambda model: float((outputs(model, x).argmax(1) == wanted).float().mean())


def uniform(case: Case, bits: int, names: list[str]) -> nn.Module:
    rules = [{"op_names": names, "quant_types": ["weight"], "quant_bits": bits}]
    quantizer = PTQQuantizer(copy.deepcopy(case.model), rules, weights="mse")
    return quantizer.compress()


def bits(case: Case, images: int) -> dict[str, Any]:
    """Return the agreement with the float network at 4, 8 and 5 bits on average."""
    x = case.inputs[0][:images]
    metric = agreement(case, x)
    seen = agreement(case, torch.cat(case.calibration))  # by which exchanges are judged
    names = [
        layer for d in Space(case.model, BITS, case.example[0]).decisions for layer in d.layers
    ]
    row: dict[str, Any] = {f"{n} bits": metric(uniform(case, n, names)) for n in (4, 8)}
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        search = Search(
            case.model,
            BITS,
            budget={"average_bits": 5.0},
            evaluate=seen,
            data=case.calibration,
            example_inputs=case.example[0],
            trials=5,
        )
        task = search.start(Path(folder))
        best = search.run_strategy(task)
        row["CPU seconds"] = time.process_time() - start
        reached = metric(task.candidate(best.choice).model)
    row |= {"5 bits on average": reached, "average bits": best.costs["average_bits"]}
    row["recovered"] = (reached - row["4 bits"]) / (1 - row["4 bits"])
    row["images"] = len(x)
    return row


def scores(case: Case, images: int) -> dict[str, Any]:
    """Return the CPU time and the rank correlation of scores, against one layer at a time."""
    x = case.inputs[0][:images]
    space = Space(case.model, BITS, case.example[0])
    start = time.process_time()
    found = find_scores(space, case.calibration)
    cost = time.process_time() - start
    reference = outputs(case.model, x).log_softmax(1)
    start, real = time.process_time(), []
    for decision in space.decisions:
        model = uniform(case, 4, list(decision.layers))
        now = outputs(model, x).log_softmax(1)
        real.append(float((reference.exp() * (reference - now)).sum(1).mean()))
    seconds = (
        (time.process_time() - start) * len(case.calibration) * len(case.calibration[0]) / len(x)
    )
    expected = [float(s[1]) for s in found]
    return {
        "layers": len(space.decisions),
        "CPU seconds": cost,
        "one at a time, CPU seconds on as many images": seconds,
        "times cheaper": seconds / cost,
        "rank correlation": float(spearmanr(expected, real).statistic),
        "images": len(x),
    }


def latency(case: Case, count: int, networks: int) -> dict[str, Any]:
    """Return how far estimates are off for random networks."""
    with tempfile.TemporaryDirectory() as folder:
        space = Space(case.model, WIDTHS, case.example[0])
        maker = Maker(space, case.calibration[:1], "none", {}, target_of("onnxruntime", "torch"))
        original = maker.write_original(Path(folder), Journal(Path(folder), {}))
        clock = Clock(maker, Counts(space), original, Path(folder))
        clock.fill(networks)
        terms, macs = clock.terms(), clock.counts.macs()
        whole = total(macs, (0,) * len(space.sizes))
        rng, rows = np.random.default_rng(1), []
        for _ in range(count):
            # Networks of all sizes: each draws from its own range of alternatives.
            most = int(rng.integers(1, 5))
            choice = tuple(int(rng.integers(min(n, most))) for n in space.sizes)
            ratio, _ = clock.measure(choice, maker.draft(choice))
            rows.append((total(terms, choice), ratio, total(macs, choice) / whole))
            print(f"estimated {rows[-1][0]:.3f}, measured {ratio:.3f}", flush=True)
        estimated, real, work = np.array(rows).T
        scale = float(np.median(real / work))
        return {
            "networks timed for the table": networks,
            "random networks": count,
            "mean error": float(np.abs(estimated / real - 1).mean()),
            "rank correlation": float(spearmanr(estimated, real).statistic),
            "mean error by MACs": float(np.abs(scale * work / real - 1).mean()),
            "rank correlation by MACs": float(spearmanr(work, real).statistic),
            "original, ms": clock.milliseconds,
            "batch": len(case.example[0]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["bits", "scores", "latency"])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--random", type=int, default=50, help="networks to compare estimates with")
    parser.add_argument("--networks", type=int, default=16, help="networks for the latency table")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.manual_seed(0)
    case = lite_case("lite0", 224)
    record: dict[str, Any] = {"measured": measured(), "network": case.title}
    for part in options.parts:
        if part == "latency":
            record[part] = latency(case, options.random, options.networks)
        else:
            record[part] = {"bits": bits, "scores": scores}[part](case, options.images)
        print(part, record[part], flush=True)
        write_json(options.output, record)


if __name__ == "__main__":
    main()
