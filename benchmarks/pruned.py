"""EfficientNet-Lite with fewer and fewer multiplications: without training, and after some distillation.

    ./run python benchmarks/pruned.py                            # needs pip install '.[bench]'
    ./run python benchmarks/pruned.py --resume                   # goes on where a run was stopped
    ./run python benchmarks/pruned.py --networks lite2 --shares 0.7 --minutes 0

``LeastSquaresPruner`` and ``reconstruct`` see photos of groceries without labels. Reported is how often
500 other photos get the most probable class of the float network, and how often their kind of grocery
is recognized, of 14: a linear classifier of the float network's logits, fitted to the labelled training
photos, is applied to those of the pruned network. The mean Kullback-Leibler divergence of the class
probabilities from the float network's is also reported: it changes even where the most probable class
does not. At 70 % of the MACs the network is then trained for some minutes of CPU time, with the float
network as teacher and without labels; the final weights are evaluated, not the best ones.

All settings were chosen on Lite0; Lite1 was measured with the same ones.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from typing import Any

import torch
from data import labelled_photos
from record import RESULTS, read_json, write_json
from torch import Tensor, nn
from trained_nets import decode, load_lite

from lilliput.torch import LeastSquaresPruner, reconstruct, speedup

SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}
TESTED, BATCH = 500, 16
Photos = tuple[Tensor, Tensor]


class Photographs:
    """Photos for calibration and training, and others for testing, with the kind of grocery."""

    def __init__(self, side: int, calibrated: int) -> None:
        order = random.Random(0)
        train, test = (list(part) for part in labelled_photos())
        self.test = self._load(order.sample(test, TESTED), side)
        self.train = self._load(order.sample(train, len(train)), side)
        self.batches = list(self.train[0][:calibrated].split(BATCH))

    def _load(self, rows: list[tuple[bytes, int]], side: int) -> Photos:
        pictures, labels = zip(*rows, strict=True)
        return (decode(list(pictures), side) - 127) / 128, torch.tensor(labels)


class Fruit:
    """A linear classifier of the kind of fruit on a photo, from the float network's logits."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.mean, self.spread = logits.mean(0), logits.std(0)
        rows = self._rows(logits)
        wanted = nn.functional.one_hot(labels).double()
        price = 0.1 * len(rows) * torch.eye(rows.shape[1], dtype=torch.float64)
        self.weight = torch.linalg.solve(rows.T @ rows + price, rows.T @ wanted)

    def _rows(self, logits: Tensor) -> Tensor:
        rows = ((logits - self.mean) / self.spread).double()
        return torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], 1)

    def accuracy(self, logits: Tensor, labels: Tensor) -> float:
        return float(((self._rows(logits) @ self.weight).argmax(1) == labels).double().mean())


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(20)])


def shrink(original: nn.Module, share: float, batches: list[Tensor]) -> nn.Module:
    """Return a network with a share of the multiplications, without training."""
    model = copy.deepcopy(original)
    rules = [{"op_types": ["Conv2d"], "max_macs": share, "round_to": 8}]
    pruner = LeastSquaresPruner(model, rules, example_inputs=batches[0][:2])
    pruner.calibrate(batches)
    model = pruner.compress()
    reconstruct(model, batches, original, progress=False)
    return speedup(model, batches[0][:2]).model


def distill(model: nn.Module, teacher: nn.Module, photos: Tensor, minutes: float) -> int:
    """Train for some minutes of CPU time to match the teacher's outputs; return the number of steps.

    Batch norms keep their statistics.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    generator, start = torch.Generator().manual_seed(0), time.process_time()
    end, steps = start + 60 * minutes, 0
    while (now := time.process_time()) < end:
        optimizer.param_groups[0]["lr"] = 1e-4 * (end - now) / (end - start)
        x = photos[torch.randint(len(photos), (BATCH,), generator=generator)]
        x = x.flip(3) if torch.rand((), generator=generator) < 0.5 else x
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        loss = nn.functional.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return steps


class Bench:
    """One network with its photos, and how networks cut from it are evaluated."""

    def __init__(self, name: str, calibrated: int) -> None:
        self.photos, self.original = Photographs(SIDES[name], calibrated), load_lite(name)
        self.wanted = outputs(self.original, self.photos.test[0])
        self.fruit = Fruit(outputs(self.original, self.photos.train[0]), self.photos.train[1])

    def judge(self, model: nn.Module) -> dict[str, float]:
        x, labels = self.photos.test
        received = outputs(model, x)
        logs = (received.log_softmax(1), self.wanted.log_softmax(1))
        divergence = nn.functional.kl_div(*logs, reduction="batchmean", log_target=True)
        return {
            "same": float((received.argmax(1) == self.wanted.argmax(1)).double().mean()),
            "fruit": self.fruit.accuracy(received, labels),
            "divergence": float(divergence),
        }

    def row(self, share: float, minutes: float) -> dict[str, Any]:
        start = time.process_time()
        model = shrink(self.original, share, self.photos.batches)
        row: dict[str, Any] = {"share": share, "cpu_seconds": time.process_time() - start}
        row["untrained"] = self.judge(model)
        if minutes and share == 0.7:
            steps = distill(model, self.original, self.photos.train[0], minutes)
            row["distilled"] = self.judge(model) | {"steps": steps}
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["lite0", "lite1"], choices=list(SIDES))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.9, 0.8, 0.7, 0.6, 0.5])
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--calibrated", type=int, default=160)
    parser.add_argument("--resume", action="store_true", help="keep the rows with these settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "pruned.json"
    earlier = read_json(path)
    kept = earlier.get("networks", {})
    settings = {"calibrated": options.calibrated, "minutes": options.minutes}
    for name in options.networks:
        found = kept.get(name, {})
        is_kept = options.resume and settings.items() <= found.items()
        rows = {row["share"]: row for row in found["rows"]} if is_kept else {}
        bench = Bench(name, options.calibrated)
        whole = bench.fruit.accuracy(bench.wanted, bench.photos.test[1])
        print(f"{name}: fruit {whole:.1%}", flush=True)
        for share in (x for x in options.shares if x not in rows):
            rows[share] = bench.row(share, options.minutes)
            print(f"  {json.dumps(rows[share])}", flush=True)
            ordered = [rows[x] for x in sorted(rows, reverse=True)]
            kept[name] = {"fruit": whole, **settings, "rows": ordered}
            networks = {x: kept[x] for x in SIDES if x in kept}
            write_json(path, {"tested": TESTED, "networks": networks}, earlier)


if __name__ == "__main__":
    main()
