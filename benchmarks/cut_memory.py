"""Peak memory of pruning and cutting a model, as a multiple of its weights.

./run python benchmarks/cut_memory.py
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import torch
from outputs import deviation
from record import RESULTS, write_json
from torch import Tensor, nn

from lilliput.torch import L1NormPruner, speedup


def wide_mlp() -> tuple[nn.Module, Tensor]:
    width = 1536
    hidden = [x for _ in range(20) for x in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), *hidden, nn.Linear(width, 10)), torch.randn(2, 64)


def vgg() -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = []
    inputs = 3
    for width in (64, 128, 256, 512, 512, 512):
        for _ in range(3):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(4096, 1000)), torch.randn(2, 3, 64, 64)


MODELS = {"wide MLP": wide_mlp, "VGG": vgg}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cut(model: nn.Module, x: Tensor) -> float:
    rules = [{"op_types": ["default"], "sparsity": 0.5}]
    L1NormPruner(model.eval(), rules, example_inputs=x).compress()
    with torch.no_grad():
        masked = model(x)
        return deviation(masked, speedup(model, x).model(x))


def measure(name: str) -> dict[str, float]:
    """Cut one model in this process; the memory of a small cut is subtracted."""
    torch.manual_seed(0)
    cut(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 8))
    before = peak_bytes()
    model, x = MODELS[name]()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    start = time.perf_counter()
    error = cut(model, x)
    return {
        "weights [MB]": weights / 1e6,
        "peak [MB]": (peak_bytes() - before) / 1e6,
        "peak / weights": (peak_bytes() - before) / weights,
        "seconds": time.perf_counter() - start,
        "largest relative error": error,
    }


def main() -> None:
    results: dict[str, object] = {}
    for name in MODELS:
        command = [sys.executable, __file__, name]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        results[name] = json.loads(run.stdout.splitlines()[-1])
        print(name, results[name])
    write_json(RESULTS / "cut_memory.json", {"models": results})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
