"""Kill -9 a recipe at random times, resume it, and compare the final files with an undisturbed run.

    ./run python benchmarks/kill_resume.py --kills 50

A CNN on scikit-learn's digits: train, prune channels on a schedule, cut them out, fine-tune, quantize
in training, write ONNX. All packages are imported once; each run is a fork of that process, so that
a kill happens during the run and not during imports. Linux and macOS.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime  # noqa: F401  (imported before forking)
import torch
from record import RESULTS, write_json
from sklearn.datasets import load_digits
from torch import nn

from lilliput.recipes import Event, run
from lilliput.recipes.checkpoint import NAME, read_run
from lilliput.report.build import build_report
from lilliput.torch import channel_groups, export_onnx

RECIPE = {
    "lilliput": 1,
    "model": "kill_resume:build",
    "data": "kill_resume:batches",
    "evaluate": "kill_resume:accuracy",
    "loss": "cross_entropy",
    "optimizer": "kill_resume:make_optimizer",
    "seed": 3,
    "steps": [
        {"finetune": {"epochs": 4}},
        {
            "prune": "agp",
            "config": [{"op_types": ["Conv2d"], "final_sparsity": 0.5}],
            "options": {"pruning_algorithm": "l1"},
            "epochs": 4,
        },
        {"speedup": {}},
        {"finetune": {"epochs": 2}},
        {"quantize": "qat", "config": [{"op_types": ["Conv2d", "Linear"]}], "epochs": 2},
        {"export": "onnx", "file": "small.onnx"},
    ],
}


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    bunch = load_digits()
    images = (torch.tensor(bunch.images, dtype=torch.float32) / 16).unsqueeze(1)
    return images, torch.tensor(bunch.target)


def build() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(0.1), nn.Linear(16 * 16, 10)),
    )


def batches() -> torch.utils.data.DataLoader[Any]:
    images, labels = digits()
    data = torch.utils.data.TensorDataset(images[:1280], labels[:1280])
    return torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)


def accuracy(model: Callable[[torch.Tensor], torch.Tensor]) -> float:
    images, labels = digits()
    with torch.no_grad():
        return float((model(images[1280:]).argmax(1) == labels[1280:]).float().mean())


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def import_all(folder: Path) -> None:
    """Trigger all lazy imports; nothing is trained before forking."""
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.zeros(2, 2)
    channel_groups(model, x)
    export_onnx(model, folder / "first.onnx", x, check=False)
    build_report().to_html()


def start(folder: Path, report: int | None = None) -> int:
    """Fork a process that runs or resumes the recipe; return its id.

    It writes a line to ``report`` when a unit of work starts or ends.
    """
    process = os.fork()
    if process:
        return process

    def progress(event: Event) -> None:
        if report is not None:
            os.write(report, f"{event.number} {event.seconds or 0}\n".encode())

    try:
        run(RECIPE, folder, resume=True, progress=progress)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def finish(process: int) -> None:
    """Wait for a process that has to succeed."""
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError("a run did not finish")


def run_whole(folder: Path) -> dict[int, float]:
    """Run the recipe undisturbed; return the duration of each unit."""
    reading, writing = os.pipe()
    process = start(folder, writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        pairs = [line.split() for line in lines]
    finish(process)
    return {int(number): float(seconds) for number, seconds in pairs if float(seconds)}


def kill_in_unit(folder: Path, unit: int, seconds: float) -> None:
    """Kill a run some time after a unit of work started."""
    reading, writing = os.pipe()
    process = start(folder, writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            if line.startswith(f"{unit} "):
                break
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def kill_after(folder: Path, seconds: float) -> None:
    """Kill a run some time after it was started."""
    process = start(folder)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def digest(folder: Path) -> dict[str, str]:
    """Return the hash of each file that does not depend on time, and all names."""
    timed = ("receipt.json", "report.html", "report.json", NAME)
    files = sorted(x for x in folder.rglob("*") if x.is_file())
    return {
        str(x.relative_to(folder)): ""
        if x.name in timed
        else hashlib.sha256(x.read_bytes()).hexdigest()
        for x in files
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    here = Path(__file__).parent
    os.chdir(here)  # the recipe names functions of this file
    trials: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        import_all(Path(temporary))
        units = run_whole(Path(temporary) / "whole")
        expected = digest(Path(temporary) / "whole")
        for number in range(options.kills):
            folder = Path(temporary) / f"run-{number}"
            if number % 2:
                when = chance.uniform(0, sum(units.values()))
                kill_after(folder, when)
            else:  # units differ in length: every second kill is in a random one
                unit = chance.choice(sorted(units))
                when = chance.uniform(0, units[unit])
                kill_in_unit(folder, unit, when)
            done = read_run(folder).done if (folder / NAME).exists() else 0
            finish(start(folder))
            found = digest(folder)
            trials.append({"units_done": done, "identical": found == expected})
            wrong = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
            text = "identical" if not wrong else f"differs: {', '.join(sorted(wrong))}"
            print(
                f"{number + 1}: killed when {done} of {len(units)} units were done: {text}",
                flush=True,
            )
            shutil.rmtree(folder)
    identical = sum(trial["identical"] for trial in trials)
    print(f"{identical} of {len(trials)} end with the identical files")
    record = {"kills": len(trials), "identical": identical, "units": len(units)}
    record |= {"files": sorted(expected), "trials": trials}
    write_json(RESULTS / "kill_resume.json", record)
    if identical != len(trials):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
