"""Measure the cost of finding and cutting channels on networks of real size, and its growth with depth.

    ./run python -m pip install --constraint constraints.txt '.[bench]'
    ./run python benchmarks/real_size.py

Half of every layer's channels, random weights, images of 224 × 224, a batch of two, one thread. CPU seconds
of the whole workflow: constructing the pruner, compress() and speedup() with its check in double precision
and its receipt; Torch-Pruning, which checks nothing, runs on the same networks. Each network has its own
process, and the median of a few runs is reported.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from networks import mobilenet_v2, resnet
from peer import attempt
from record import RESULTS, write_json
from speedup_coverage import PROCESSES, prune_and_speed_up
from torch import nn
from zoo import Entry

RESULT = RESULTS / "real_size.json"
DEPTHS = (30, 300)  # blocks of two layers


def image() -> tuple[torch.Tensor]:
    return (torch.randn(2, 3, 224, 224),)


def pixels() -> dict[str, torch.Tensor]:
    return {"pixel_values": image()[0]}


def vit_tiny() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192, num_attention_heads=3, intermediate_size=768, num_labels=1000
    )
    return ViTForImageClassification(config)


def efficientnet_b0() -> nn.Module:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        image_size=224,
        num_labels=1000,
    )
    return EfficientNetForImageClassification(config)


def convnext_tiny() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(ConvNextConfig(num_labels=1000))


NETWORKS = {
    entry.name: entry
    for entry in (
        Entry("ResNet-50", lambda: resnet((3, 4, 6, 3), expansion=4), image, "own"),
        Entry("MobileNetV2", mobilenet_v2, image, "own"),
        Entry("EfficientNet-B0", efficientnet_b0, pixels, "transformers"),
        Entry("ViT-Tiny", vit_tiny, pixels, "transformers"),
        Entry("ConvNeXt-Tiny", convnext_tiny, pixels, "transformers"),
    )
} | {
    f"{2 * blocks + 2} layers": Entry(
        f"{2 * blocks + 2} layers",
        lambda blocks=blocks: resnet((blocks,), expansion=1, width=16, classes=10, small=True),
        lambda: (torch.randn(2, 3, 16, 16),),
        "own",
    )
    for blocks in DEPTHS
}


def ours(entry: Entry) -> float:
    """Return the CPU seconds of pruning and cutting one network."""
    seconds: float = prune_and_speed_up(entry.build(), entry.inputs())["seconds"]
    return seconds


def peer(entry: Entry) -> float:
    """Return the CPU seconds of Torch-Pruning."""
    done = attempt(entry, "head dims")
    return float(done["seconds"]) if done["status"] == "ok" else float("nan")


def work(name: str, runs: int, side: Any, results: Any) -> None:
    torch.set_num_threads(1)
    try:
        times = [side(NETWORKS[name]) for _ in range(runs + 1)][1:]  # the first one imports
        results.send(statistics.median(times))
    except Exception as error:
        results.send(f"{type(error).__name__}: {error}"[:200])


def in_process(name: str, runs: int, side: Any) -> Any:
    results, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(name, runs, side, sender))
    process.start()
    sender.close()
    found = results.recv()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in options.only:
        rows[name] = {
            "ours": in_process(name, options.runs, ours),
            "Torch-Pruning": in_process(name, options.runs, peer),
        }
        print(name, rows[name], flush=True)
    if len(rows) == len(NETWORKS):
        write_json(RESULT, {"networks": rows, "runs": options.runs})


if __name__ == "__main__":
    main()
