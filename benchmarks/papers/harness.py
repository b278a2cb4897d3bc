"""What the papers share: the data, the training, a control of the same budget, and a record per seed.

A file of this folder names a paper, its rows and the settings; a row is a function that compresses the
trained network of a seed and returns its error. The control is the same network trained as long, by the
same loss and the same learning rates, with nothing attached.

With ``--valid``, 5,000 of the training images are set apart and judged on, and nothing is kept: settings are
chosen so. Without it, all training images train, and the test images are looked at once, after the last
epoch. What a seed of a row gave is kept as soon as it is there: start it again to go on.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from archives import cache_folder
from record import RESULTS, read_json, write_json
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from lilliput.torch import Distiller
from papers.datasets import DataSet
from papers.networks import NETWORKS, ONE_DENSE
from papers.training import augmentation, new_optimizer, normalised, precision, shifted

CONTROL = "control"  # among the names of rows
TICKS = 4  # calls of a pruner's schedule in an epoch
Record = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """How a network is trained: densely, and then with or without something attached."""

    dense_epochs: int = 20
    dense_rate: float = 1e-3
    epochs: int = 30
    rate: float = 2e-3
    batch: int = 128
    temperature: float = 4.0  # of the distillation from the dense network
    labels: float = 0.1  # what the loss on the labels counts beside it
    before: Budget | None = None  # of a training that comes between the two
    shift: int = 0  # pixels by which images are moved, a batch at a time

    @property
    def ticks(self) -> int:
        """Steps of a schedule in the whole training after the dense one."""
        return self.epochs * TICKS

    @property
    def directions(self) -> int:
        """In how many directions images are moved."""
        return (2 * self.shift + 1) ** 2

    def settings(self) -> Record:
        """Return the fields as data; what was measured before images were moved has no ``shift``."""
        found = {name: x for name, x in asdict(self).items() if name != "shift" or x}
        return found | {"before": self.before.settings() if self.before else None}


@dataclass(frozen=True)
class Row:
    """One line of a paper's table.

    Parameters
    ----------
    run : callable
        Given a task; returns figures, of which ``error`` [%] is one.
    paper : dict
        The paper's own figures.
    most : float, optional
        The error [%] that is not to be exceeded by the mean over seeds.
    above_control : float, optional
        By how much the error may exceed that of the control.
    limits : dict
        Figures that must not be exceeded, such as ``bytes``.
    bar : callable, optional
        Given the mean errors of all rows and of ``dense``; returns a bar in words and whether it is met.
    note : str
        What was tried, and what limits it.
    """

    run: Callable[[Task], Record]
    paper: Record = field(default_factory=dict)
    most: float | None = None
    above_control: float | None = None
    limits: dict[str, float] = field(default_factory=dict)
    bar: Callable[[dict[str, float]], tuple[str, bool]] | None = None
    note: str = ""


class Answers(nn.Module):
    """A teacher that answers each training image once for each direction in which it is moved."""

    rows: Tensor  # of the images that the student has just seen
    which = 0  # direction in which they were moved

    def __init__(self, teacher: nn.Module, images: Tensor, shift: int = 0) -> None:
        super().__init__()
        teacher.eval()
        with torch.no_grad():
            self.logits = [
                torch.cat([teacher(shifted(some, shift, which)) for some in images.split(1024)])
                for which in range((2 * shift + 1) ** 2)
            ]

    def forward(self, images: Tensor) -> Tensor:
        """Return the answers for a batch, which are those of ``rows``."""
        return self.logits[self.which][self.rows]


@dataclass(frozen=True)
class Task:
    """One seed on one data set."""

    network: str
    data: str
    budget: Budget
    seed: int
    train_set: tuple[Tensor, Tensor]
    test_set: tuple[Tensor, Tensor]
    is_valid: bool = False

    def dense(self) -> nn.Module:
        """Return the trained network of this seed, or of all seeds."""
        if self.network in ONE_DENSE and self.seed:
            return replace(self, seed=0).dense()
        budget = self.budget

        def make() -> nn.Module:
            model = NETWORKS[self.network]()
            self.train(model, self.optimizer(model, budget.dense_rate), budget.dense_epochs)
            return model

        settings = [budget.dense_epochs, budget.dense_rate, budget.batch]
        settings += [budget.shift] if budget.shift else []
        return self.kept("dense", settings, make)[0]

    def optimizer(self, model: nn.Module, rate: float) -> torch.optim.Optimizer:
        """Return the optimizer that this data set's networks are trained with."""
        return new_optimizer(model, self.data, rate)

    def kept(
        self,
        what: str,
        settings: Any,
        make: Callable[[], nn.Module],
        build: Callable[[], nn.Module] | None = None,
    ) -> tuple[nn.Module, float]:
        """Return a network that is made once, then read from the cache, and the CPU seconds it took.

        ``build`` returns an untrained network of its sizes, if they are not those of the task's.
        """
        key = [what, self.network, self.data, self.seed, settings, len(self.train_set[1])]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        path = cache_folder() / "papers" / f"{what}-{self.network}-{self.seed}-{digest}.safetensors"
        if not path.is_file():
            torch.manual_seed(self.seed)
            start = time.process_time()
            state = {name: x.contiguous() for name, x in make().state_dict().items()}
            seconds = torch.tensor(time.process_time() - start)
            path.parent.mkdir(exist_ok=True)
            unfinished = path.with_suffix(".partial")
            save_file(state | {"cpu_seconds": seconds}, unfinished)
            unfinished.replace(path)
        state = load_file(path)
        seconds = state.pop("cpu_seconds")
        model = (build or NETWORKS[self.network])()
        model.load_state_dict(state)
        return model, round(seconds.item(), 1)

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        epochs: int,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        on_tick: Callable[[int], None] | None = None,
        teacher: nn.Module | None = None,
        ticks: int = TICKS,
    ) -> None:
        """Train, with the learning rate on a cosine down to 0; call ``on_tick`` ``ticks`` times an epoch."""
        images, labels = self.train_set
        generator = torch.Generator().manual_seed(self.seed)
        steps = len(labels) // self.budget.batch
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
        forward_precision, augment = precision(model), augmentation(self.data)
        which = 0
        model.train()
        for epoch in range(epochs):
            order = torch.randperm(len(labels), generator=generator)
            for step, rows in enumerate(
                order[: steps * self.budget.batch].split(self.budget.batch)
            ):
                tick, is_old = divmod(step * ticks, steps)
                if on_tick is not None and is_old < ticks:  # the first step of a tick
                    on_tick(epoch * ticks + tick)
                batch = images[rows] if augment is None else augment(images[rows])
                if self.budget.shift:
                    which = int(torch.randint(self.budget.directions, (1,)))
                    batch = shifted(batch, self.budget.shift, which).contiguous()
                if isinstance(teacher, Answers):
                    teacher.rows, teacher.which = rows, which
                optimizer.zero_grad()
                with forward_precision:
                    error = loss(model(batch), labels[rows])
                error.backward()
                optimizer.step()
                scheduler.step()

    def retrain(
        self,
        attach: Callable[[nn.Module, torch.optim.Optimizer], Any] | None,
        model: nn.Module | None = None,
        says: tuple[float, float] | None = None,
        ticks: int = TICKS,
    ) -> tuple[nn.Module, Any]:
        """Train the dense network on, as its own student, with the compressor that ``attach`` puts on it.

        A ``model`` that is given is the student in its place. Returned with the compressor still on it.
        What the labels and the teacher count in the loss is the budget's, if ``says`` is not given. The
        compressor's schedule moves on ``ticks`` times an epoch.
        """
        of_labels, of_teacher = says or (self.budget.labels, 1.0)
        is_fixed = augmentation(self.data) is None
        teacher: nn.Module = self.dense()
        if is_fixed:
            teacher = Answers(teacher, self.train_set[0], self.budget.shift)
        student = self.dense() if model is None else model
        optimizer = self.optimizer(student, self.budget.rate)
        rules = [{"temperature": self.budget.temperature}]
        distiller = Distiller(student, rules, optimizer, teacher=teacher)
        if of_teacher:
            student = distiller.compress()
        compressor = attach(student, optimizer) if attach is not None else None

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            total: Tensor = of_labels * F.cross_entropy(logits, labels)
            return total + of_teacher * distiller.loss() if of_teacher else total

        tick = getattr(compressor, "update_epoch", None)
        torch.manual_seed(self.seed)
        self.train(student, optimizer, self.budget.epochs, loss, tick, teacher, ticks)
        distiller.strip()
        return student, compressor

    def control(self) -> Record:
        """Return the error of the network that was trained as long with nothing attached."""
        model, seconds = self.controlled()
        return {"error": self.error(model), "cpu_seconds": seconds}

    def controlled(self) -> tuple[nn.Module, float]:
        """Return that network; where a training follows another, it follows that one's."""

        def make() -> nn.Module:
            is_first = self.budget.before is None
            student = self.dense() if is_first else self.before().controlled()[0]
            return self.retrain(None, student)[0]

        return self.kept("control", self.budget.settings(), make)

    def before(self) -> Task:
        """Return the task of the training that this one follows."""
        if self.budget.before is None:
            raise ValueError("this training follows the dense one, and none in between")
        return replace(self, budget=self.budget.before)

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        """Return the share of wrong answers [%]."""
        images, labels = self.test_set
        model.eval()
        wrong = sum(
            int((model(x).argmax(1) != y).sum())
            for x, y in zip(images.split(1000), labels.split(1000), strict=True)
        )
        return 100 * wrong / len(labels)


def weights_of(model: nn.Module) -> list[Tensor]:
    """Return the weight matrices, which the papers count; biases and norms are left out."""
    layers = [x for x in model.modules() if isinstance(x, (nn.Linear, nn.Conv2d))]
    return [layer.weight.detach() for layer in layers]


def sparse_figures(model: nn.Module, of: nn.Module | None = None) -> Record:
    """Return how many weights are left, and their bytes as floats with a bit mask."""
    weights = weights_of(model)
    kept = sum(int((w != 0).sum()) for w in weights)
    total = sum(w.numel() for w in weights_of(of or model))
    densities = [float((w != 0).float().mean()) for w in weights]
    return {
        "weights_kept": kept,
        "rate": total / kept,
        "densities": densities,
        "bytes_float_and_mask": 4 * kept + math.ceil(total / 8),
    }


def take_missing(record: Record, kept: Record) -> None:
    """Add the seeds that are kept on disk and that a record does not have, in place."""
    if kept.get("settings") != record["settings"]:
        return
    pairs = [(record[key], kept[key]) for key in ("dense", "control")]
    pairs += [(record["rows"].setdefault(name, {}), x) for name, x in kept["rows"].items()]
    for found, seeds in pairs:
        for seed, figures in seeds.items():
            found.setdefault(seed, figures)


@dataclass(frozen=True)
class Paper:
    """A paper: what it claims on which network, and the rows that repeat it."""

    name: str
    title: str
    rows: dict[str, Row]
    network: str = "lenet-300-100"
    data: str = "mnist"
    budget: Budget = Budget()
    seeds: int = 5
    about: str = ""  # a sentence for the page

    @property
    def names(self) -> list[str]:
        """The rows, and the control; without a second training the dense network is that."""
        return [*self.rows, *([CONTROL] if self.budget.epochs else [])]

    @property
    def path(self) -> Path:
        """Where its record is kept."""
        return RESULTS / "papers" / f"{self.name}.json"

    def task(self, data: DataSet, seed: int, is_valid: bool) -> Task:
        """Return what one seed trains with and is judged on."""
        train, test = data.train, data.valid
        if not is_valid:
            both = zip(data.train, data.valid, strict=True)
            train, test = tuple(np.concatenate(x) for x in both), data.test  # type: ignore[assignment]
        sets = [normalised(*part, self.data) for part in (train, test)]
        return Task(self.network, self.data, self.budget, seed, *sets, is_valid)

    def run_seed(self, task: Task, record: Record, names: list[str]) -> Record:
        """Return the record with what is missing of a seed; keep it after each row."""
        seed = str(task.seed)
        settings = {"network": self.network, "data": self.data, "budget": self.budget.settings()}
        if record and record["settings"] != settings:
            raise SystemExit(
                f"{self.path} was measured with {record['settings']}, and the script has {settings}. "
                "Delete the file to measure it anew."
            )
        record = {"paper": self.title, "settings": settings} | {
            key: dict(record.get(key, {})) for key in ("dense", "control", "rows")
        }
        record["command"] = f"./run python benchmarks/reproduce.py {self.name}"
        jobs: list[tuple[Record, str, Callable[[], Record]]] = [
            (record["dense"], "dense", lambda: {"error": task.error(task.dense())})
        ]
        for name in names:
            if name == CONTROL:
                jobs.append((record["control"], name, task.control))
                continue
            found = record["rows"].setdefault(name, {})
            jobs.append((found, name, partial(self.rows[name].run, task)))
        for found, name, run in jobs:
            if seed in found:
                continue
            start = time.process_time()
            figures = run()
            found[seed] = {"cpu_seconds": round(time.process_time() - start, 1)} | figures
            print(f"seed {seed}, {name}: {found[seed]}", flush=True)
            if not task.is_valid:
                kept = read_json(self.path)
                take_missing(record, kept)  # another process may have measured other rows or seeds
                write_json(self.path, record, kept)
        return record
