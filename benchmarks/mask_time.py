"""Time the mask of a 100-million-weight layer, compared with torch's own selection functions.

./run python benchmarks/mask_time.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from record import RESULTS, write_json
from torch import nn

from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.torch import LevelPruner

SPARSITY = 0.8


def seconds(function: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    layer = nn.Linear(10_000, options.millions * 100, bias=False)
    score = layer.weight.detach().abs()
    flat = score.flatten()
    count = prune_count(flat.numel(), SPARSITY)
    timed = {
        "lilliput prune_smallest (the whole mask)": lambda: prune_smallest(score, count),
        "torch.kthvalue (the border only)": lambda: torch.kthvalue(flat, count),
        "torch.topk (the kept entries only)": lambda: torch.topk(
            flat, flat.numel() - count, sorted=False
        ),
    }
    results = {name: seconds(function, options.repeat) for name, function in timed.items()}
    pruner = LevelPruner(layer, [{"sparsity": SPARSITY}])
    results["LevelPruner.compress (score, check, mask, zero)"] = seconds(pruner.compress, 1)
    zeros = int((layer.weight == 0).sum())
    for name, value in results.items():
        print(f"{name:<50}{value:8.2f} s")
    print(f"zeros: {zeros:,} of {flat.numel():,}; asked for {count:,}")
    record = {"weights": flat.numel(), "asked": count, "zeros": zeros, "seconds": results}
    record["threads"] = torch.get_num_threads()
    write_json(RESULTS / "mask_time.json", record)


if __name__ == "__main__":
    main()
