"""Run trials of a search on two workers: how much faster, and the same result if something is killed.

    ./run python benchmarks/search_workers.py speed          # on a quiet machine
    ./run python benchmarks/search_workers.py kills --kills 20

- ``speed``: a search whose trials evaluate a ResNet on 4,000 images of Fashion-MNIST, with a pool of one
  process and with one of two; wall time from the start of the search to its config list.
- ``kills``: searches on scikit-learn's digits. In some, one of two workers is killed (SIGKILL) at a random
  moment; others are killed as a whole and resumed. Each must end with the config list of an undisturbed
  search.

All packages are imported before processes are forked, so that a kill happens during the search. Linux
and macOS.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
import traceback
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from record import RESULTS, command, read_json, write_json
from sklearn.datasets import load_digits
from structured_accuracy import build_model
from torch import Tensor, nn

from lilliput.torch import Search

RESULT = RESULTS / "search_workers.json"
RULES = [{"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5]}}]
FORK = multiprocessing.get_context("fork")


# Two workers against one


@functools.cache
def fashion() -> tuple[Tensor, Tensor]:
    from data import fashion_mnist

    images, labels = fashion_mnist()[1]
    return (images[:4000].float() / 255 - 0.286) / 0.353, labels[:4000]


def judged(model: nn.Module) -> float:
    """Return the share of images of the right class."""
    x, y = fashion()
    with torch.no_grad():
        hits = [
            int((model(a).argmax(1) == b).sum())
            for a, b in zip(x.split(500), y.split(500), strict=True)
        ]
    return sum(hits) / len(y)


def speed(trials: int) -> dict[str, Any]:
    """Return the seconds of a search with one worker and with two."""
    x, _ = fashion()
    torch.manual_seed(0)
    model = build_model().eval()
    seconds, found = {}, []
    for workers in (1, 2):
        with ProcessPoolExecutor(workers, FORK) as pool:
            list(pool.map(abs, range(workers)))  # the processes are started
            search = Search(
                model,
                RULES,
                budget={"macs": 0.6},
                evaluate=judged,
                data=list(x[:256].split(64)),
                example_inputs=x[:4],
                trials=trials,
                executor=pool,
            )
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                task = search.start(Path(folder))
                found.append(search.run_strategy(task).choice)
                seconds[f"{workers} workers" if workers > 1 else "1 worker"] = (
                    time.perf_counter() - start
                )
        print(seconds, len(task.tried), flush=True)
    ratio = seconds["1 worker"] / seconds["2 workers"]
    return {
        "trials": len(task.tried),
        "seconds": seconds,
        "times faster": ratio,
        "same config list": found[0] == found[1],
    }


# Kills


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    held = load_digits()
    return torch.tensor(held.images, dtype=torch.float32)[:, None] / 16, torch.tensor(held.target)


@functools.cache
def trained() -> nn.Module:
    torch.manual_seed(0)
    x, y = digits()
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    for _ in range(4):
        for rows in torch.randperm(1280).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def accuracy(model: nn.Module) -> float:
    x, y = digits()
    with torch.no_grad():
        return float((model(x[1280:]).argmax(1) == y[1280:]).float().mean())


def search_digits(folder: Path, executor: Executor | None = None) -> list[Any]:
    """Search, or resume a search, and return the config list."""
    x, _ = digits()
    search = Search(
        trained(),
        RULES,
        budget={"macs": 0.5, "bytes": 0.6},
        evaluate=accuracy,
        data=list(x[:256].split(64)),
        example_inputs=x[:4],
        trials=9,
        executor=executor,
    )
    return search.run(folder).config_list


def with_a_dead_worker(folder: Path, seconds: float) -> tuple[list[Any], bool]:
    """Search on two workers, one of which is killed after some time; return whether it was running."""
    with ProcessPoolExecutor(2, FORK) as pool:
        list(pool.map(abs, range(2)))
        victim, is_over = next(iter(pool._processes)), threading.Event()

        def kill() -> None:
            if not is_over.wait(seconds):
                os.kill(victim, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        found = search_digits(folder, pool)
        was_killed = not is_over.is_set() and not thread.is_alive()
        is_over.set()
        thread.join()
    return found, was_killed


def forked(folder: Path) -> int:
    """Start a process that searches and writes its config list; return its id."""
    process = os.fork()
    if process:
        return process
    try:
        (folder / "found.txt").write_text(json.dumps(search_digits(folder / "run")))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed_and_continued(folder: Path, seconds: float) -> tuple[list[Any], bool]:
    """Kill a search after some time, and let another process resume it."""
    process = forked(folder)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    was_killed = not (folder / "found.txt").exists()
    _, status = os.waitpid(forked(folder), 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit("a resumed search did not finish.")
    found: list[Any] = json.loads((folder / "found.txt").read_text())
    return found, was_killed


def kills(count: int) -> dict[str, Any]:
    """Return how many disturbed searches end in the same config list as an undisturbed one."""
    chance, record = random.Random(0), dict[str, Any]()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        search_digits(place / "first")  # also triggers lazy imports
        start = time.perf_counter()
        expected = json.loads(json.dumps(search_digits(place / "whole")))
        whole = time.perf_counter() - start
        ways = {"workers": with_a_dead_worker, "searches": killed_and_continued}
        for name, disturbed in ways.items():
            same = tried = 0
            while tried < count:
                folder = place / f"{name}-{tried}"
                folder.mkdir()
                found, was_killed = disturbed(folder, chance.uniform(0.05, 1) * whole)
                shutil.rmtree(folder)
                if was_killed:  # otherwise it had already finished
                    tried += 1
                    same += json.loads(json.dumps(found)) == expected
                    print(f"{name}: {same} of {tried} end in the same config list", flush=True)
            record[name] = {"killed": tried, "same config list": same}
    return {**record, "config list": expected, "seconds of a search": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["speed", "kills"])
    parser.add_argument("--kills", type=int, default=20, help="of workers, and of searches")
    parser.add_argument("--trials", type=int, default=41)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lilliput").setLevel(logging.ERROR)
    found = speed(options.trials) if options.part == "speed" else kills(options.kills)
    earlier = read_json(RESULT)
    held = {x: earlier[x] for x in ("speed", "kills") if x in earlier}
    print(options.part, found)
    held[options.part] = {"command": command(), **found}
    ran = [x["command"] for x in held.values() if "command" in x]
    write_json(RESULT, {"commands": ran, **held}, earlier)


if __name__ == "__main__":
    main()
