"""Search on trained networks: bits under an average, and the cost and value of sensitivities.

    ./run python benchmarks/search.py bits scores

Sensitivities, calibration and exchanges use inputs that are not in the test. Nothing is trained.

- ``bits``: EfficientNet-Lite0 on photographs, weights of 4 or 8 bits, 5 on average; how often the class is
  that of the float network. Networks are made as a search makes them by default, with biases corrected; what
  is recovered is told of what 4 bits lose with that and without it. Beside it the same average chosen in
  other ways: at random, by the noise of each weight alone, and by other tools, where ``search_peers.py`` has
  kept what they chose.
- ``scores``: the sensitivities of all layers and choices against trying them one at a time: CPU time, and
  rank correlation with how far the outputs really move; on Lite0 and on all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import RESULTS, command, read_json, write_json
from retrieval import Retrieval, load_embedder
from scipy.stats import spearmanr
from search_peers import kept_choices
from torch import Tensor, nn
from trained_nets import lite_case

from lilliput.search.scores import find_scores
from lilliput.search.solve import Choice, solve
from lilliput.search.space import Space
from lilliput.search.task import Task
from lilliput.torch import PTQQuantizer, Search

LAYERS = {"op_types": ["Conv2d", "Linear"]}
BITS = [{**LAYERS, "quant_types": ["weight"], "quant_bits": {"choose": [4, 8]}}]
AVERAGE, DRAWN = 5.0, 3
PLAIN = "4 bits, biases not corrected"


@torch.no_grad()
def outputs(model: nn.Module, batches: Iterable[Any]) -> Tensor:
    given = (x if isinstance(x, (tuple, list)) else (x,) for x in batches)
    return torch.cat([model(*x) for x in given])


def divergence(logits: Tensor, wanted: Tensor) -> float:
    """Return the Kullback-Leibler divergence from the float network's classes."""
    now, before = logits.log_softmax(1), wanted.log_softmax(1)
    return float((before.exp() * (before - now)).sum(1).mean())


def distance(found: Tensor, wanted: Tensor) -> float:
    """Return how far embeddings have moved."""
    return float(((found - wanted) ** 2).sum(1).mean())


# Bits


def bits(trials: int) -> dict[str, Any]:
    """Return how often the class is that of the float network, for each way to choose bits."""
    case = lite_case("lite0", 224)
    test = case.inputs[0].split(25)
    wanted = outputs(case.model, test).argmax(1)
    seen = outputs(case.model, case.calibration)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        search = Search(
            case.model,
            BITS,
            budget={"average_bits": AVERAGE},
            evaluate=lambda model: -divergence(outputs(model, case.calibration), seen),
            data=case.calibration,
            example_inputs=case.example[0],
            trials=trials,
        )
        task = search.start(Path(folder))
        best = search.run_strategy(task).choice
    seconds = time.process_time() - start
    first = task.solve()
    size = len(task.space.decisions)
    ways = {"4 bits": (1,) * size, "8 bits": (0,) * size}
    ways |= {"Lilliput": best} | ({"Lilliput, scores alone": first} if first else {})
    ways["noise of each weight"] = by_noise(task)
    for tool, chosen in kept_choices().items():
        ways[tool] = tuple(int(chosen[d.layers[0]] == 4) for d in task.space.decisions)
    ways |= {f"random {i + 1}": drawn(task, i) for i in range(DRAWN)}
    same: dict[str, np.ndarray] = {}
    rows: dict[str, Any] = {}
    for title, choice in {PLAIN: ways["4 bits"], **ways}.items():
        four = [{**BITS[0], "quant_bits": 4}]
        model = quantized(case.model, four) if title == PLAIN else task.candidate(choice).model
        same[title] = (outputs(model, test).argmax(1) == wanted).numpy()
        rows[title] = {
            "average bits": task.counts.average_bits(choice),
            "same class": float(same[title].mean()),
            "divergence on calibration": divergence(outputs(model, case.calibration), seen),
        }
        for name, least in (("recovered", PLAIN), ("recovered of corrected", "4 bits")):
            if title not in (PLAIN, "4 bits"):
                share, error = (f(same[title], same[least]) for f in (recovered, spread))
                rows[title] |= {name: share, f"{name}, standard error": error}
        print(title, rows[title], flush=True)
    return {
        "network": case.title,
        "photos": len(wanted),
        "calibrated": len(seen),
        "layers": size,
        "trials": trials,
        "CPU seconds": seconds,
        "rows": rows,
    }


def by_noise(task: Task) -> Choice:
    """Choose by the squared error of rounding each weight, relative to the weight's squares."""
    noise = []
    for decision in task.space.decisions:
        weight = task.space.layers[decision.layers[0]].module.weight.detach()
        errors = []
        for number in decision.choices:
            rules = [{"op_names": list(decision.layers), "quant_types": ["weight"]}]
            model = quantized(task.space.model, [{**rules[0], "quant_bits": number}])
            rounded = model.get_submodule(decision.layers[0]).weight.detach()
            errors.append(float(((rounded - weight) ** 2).sum() / (weight**2).sum()))
        noise.append(np.array(errors))
    found = solve(noise, task.costs, {"average_bits": 0.0})
    if found is None:
        raise SystemExit("no choice has this few bits.")
    return found


def drawn(task: Task, seed: int) -> Choice:
    """Raise layers to 8 bits in random order, as long as they fit."""
    choice = [1] * len(task.space.decisions)
    for number in np.random.default_rng(seed).permutation(len(choice)):
        choice[number] = 0
        if task.counts.average_bits(choice) > AVERAGE:
            choice[number] = 1
    return tuple(choice)


def recovered(same: np.ndarray, four: np.ndarray) -> float:
    """Return the share of the loss of 4 bits that is recovered."""
    return float((same.mean() - four.mean()) / (1 - four.mean()))


def spread(same: np.ndarray, four: np.ndarray) -> float:
    """Return the standard error of that share, by bootstrapping the photographs a thousand times."""
    rng = np.random.default_rng(0)
    rows = rng.integers(len(same), size=(1000, len(same)))
    return float(np.std([recovered(same[x], four[x]) for x in rows]))


def quantized(model: nn.Module, rules: list[dict[str, Any]]) -> nn.Module:
    quantizer = PTQQuantizer(copy.deepcopy(model), rules, weights="mse")
    found: nn.Module = quantizer.compress()
    return found


# Scores


def lite_scores(count: int) -> dict[str, Any]:
    case = lite_case("lite0", 224)
    seen, test = torch.cat(case.calibration)[:count].split(4), case.inputs[0][:count].split(4)
    found = scores(case.model, case.example[0], seen, test, divergence)
    return {"network": case.title, "inputs": count, **found}


def minilm_scores(count: int) -> dict[str, Any]:
    model, tokenizer = load_embedder()
    task = Retrieval(tokenizer, pairs=count // 2, sets=1, seed=0)
    test = list(zip(*(x.split(16) for x in task.inputs), strict=True))
    example = tuple(x[:2] for x in task.inputs)
    found = scores(model, example, task.padded[: count // 16], test, distance)
    return {"network": "all-MiniLM-L6-v2", "inputs": count, **found}


def scores(
    model: nn.Module,
    example: Any,
    batches: Sequence[Any],
    test: Sequence[Any],
    far: Callable[[Tensor, Tensor], float],
) -> dict[str, Any]:
    """Return CPU time and rank correlation of scores, compared with one layer and choice at a time."""
    start = time.process_time()
    space = Space(model, BITS, example)
    found = find_scores(space, batches)
    cost = time.process_time() - start
    wanted = outputs(model, test)
    start, real = time.process_time(), []
    for decision in space.decisions:
        moved = []
        for number in decision.choices:
            rules = [{"op_names": list(decision.layers), "quant_types": ["weight"]}]
            changed = quantized(model, [{**rules[0], "quant_bits": number}])
            moved.append(far(outputs(changed, test), wanted))
        real.append(moved)
    seconds = time.process_time() - start
    expected, moved_by = np.array(found), np.array(real)
    by_bits = {
        f"rank correlation at {number} bits": rank(expected[:, i], moved_by[:, i])
        for i, number in enumerate(space.decisions[0].choices)
    }
    return {
        "layers": len(space.decisions),
        "choices": expected.shape[1],
        "CPU seconds": cost,
        "one at a time, CPU seconds": seconds,
        "times cheaper": seconds / cost,
        "rank correlation": rank(expected.ravel(), moved_by.ravel()),
        **by_bits,
    }


def rank(one: np.ndarray, two: np.ndarray) -> float:
    return float(spearmanr(one, two).statistic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["bits", "scores"])
    parser.add_argument("--trials", type=int, default=20, help="of the search for bits")
    parser.add_argument("--inputs", type=int, default=64, help="of scores, and of each trial")
    parser.add_argument("--networks", nargs="+", choices=["lite0", "minilm"])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if "bits" in options.parts:
        found = {"commands": [command()], **bits(options.trials)}
        write_json(RESULTS / "search_bits.json", found)
    if "scores" in options.parts:
        path, makers = (
            RESULTS / "search_scores.json",
            {"lite0": lite_scores, "minilm": minilm_scores},
        )
        for name in options.networks or makers:
            earlier = read_json(path)
            found = {**makers[name](options.inputs), "command": command()}
            print(found, flush=True)
            networks = {**earlier.get("networks", {}), name: found}
            ran = list(dict.fromkeys(x["command"] for x in networks.values() if "command" in x))
            write_json(path, {"commands": ran, "networks": networks}, earlier)


if __name__ == "__main__":
    main()
