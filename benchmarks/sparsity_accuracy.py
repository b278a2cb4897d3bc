"""Accuracy by sparsity on real data: pruned at once, and pruned gradually with training.

    ./run python benchmarks/sparsity_accuracy.py

A small CNN on scikit-learn's handwritten digits, three seeds. Writes the results and the README's
picture.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from pathlib import Path

import torch
from record import RESULTS, write_json

from lilliput.demo import Digits, build_model, measure, train_epoch
from lilliput.torch import AGPPruner, LevelPruner

LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
HERE = Path(__file__).parent


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def at_once(dense: torch.nn.Module, sparsity: float, data: Digits) -> float:
    model = copy.deepcopy(dense)
    pruner = LevelPruner(model, [{"op_types": ["default"], "sparsity": sparsity}])
    pruner.compress()
    return measure(pruner.strip(), data)["accuracy"]


def gradually(dense: torch.nn.Module, sparsity: float, data: Digits) -> float:
    model = copy.deepcopy(dense)
    optimizer = optimizer_of(model)
    rule = {"op_types": ["default"], "final_sparsity": sparsity, "end_epoch": 10}
    pruner = AGPPruner(model, [rule], optimizer)
    pruner.compress()
    for epoch in range(18):
        pruner.update_epoch(epoch + 1)
        train_epoch(model, optimizer, data)
    return measure(pruner.strip(), data)["accuracy"]


def run(seeds: int) -> dict[str, list[float]]:
    data = Digits()
    curves: dict[str, list[list[float]]] = {"dense": [], "at once": [], "gradually": []}
    for seed in range(seeds):
        torch.manual_seed(seed)
        dense = build_model()
        optimizer = optimizer_of(dense)
        for _ in range(15):
            train_epoch(dense, optimizer, data)
        curves["dense"].append([measure(dense, data)["accuracy"]] * len(LEVELS))
        curves["at once"].append([at_once(dense, level, data) for level in LEVELS])
        curves["gradually"].append([gradually(dense, level, data) for level in LEVELS])
        print(f"seed {seed} done")
    return {
        name: [statistics.mean(values) for values in zip(*rows, strict=True)]
        for name, rows in curves.items()
    }


def draw(curves: dict[str, list[float]]) -> str:
    """Return the curves as an SVG that is readable in light and dark mode."""
    width, height, left, right, top, bottom = 720, 360, 64, 190, 28, 48
    x_of = [left + i * (width - left - right) / (len(LEVELS) - 1) for i in range(len(LEVELS))]

    def y_of(accuracy: float) -> float:
        return top + (1 - accuracy) * (height - top - bottom)

    colors = {"dense": "#888888", "at once": "#d2603a", "gradually": "#2f7fd1"}
    labels = {
        "dense": "not pruned",
        "at once": "pruned at once",
        "gradually": "pruned with training",
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" fill="#777777">'
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = y_of(tick)
        line = f'x1="{left}" y1="{y:.1f}" x2="{width - right}" y2="{y:.1f}"'
        parts.append(f'<line {line} stroke="#777777" stroke-opacity="0.25"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.0%}</text>')
    for x, level in zip(x_of, LEVELS, strict=True):
        parts.append(f'<text x="{x:.1f}" y="{height - 28}" text-anchor="middle">{level:.0%}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 6}" text-anchor="middle">weights removed</text>')
    parts.append(f'<text x="{left - 48}" y="16">test accuracy</text>')
    ends: list[float] = []
    for name, values in curves.items():
        points = " ".join(f"{x:.1f},{y_of(v):.1f}" for x, v in zip(x_of, values, strict=True))
        dashes = ' stroke-dasharray="5 4"' if name == "dense" else ""
        stroke = f'stroke="{colors[name]}" stroke-width="2.5"{dashes}'
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        y = y_of(values[-1])
        while any(abs(y - other) < 17 for other in ends):
            y += 3
        ends.append(y)
        text = f"{labels[name]} {values[-1]:.1%}"
        place = f'x="{x_of[-1] + 10:.1f}" y="{y + 4:.1f}"'
        parts.append(f'<text {place} fill="{colors[name]}">{text}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    curves = run(options.seeds)
    print("sparsity   " + "".join(f"{level:>8.0%}" for level in LEVELS))
    for name, values in curves.items():
        print(f"{name:<11}" + "".join(f"{value:>8.2%}" for value in values))
    record = {"levels": LEVELS, "seeds": options.seeds, "accuracy": curves}
    write_json(RESULTS / "sparsity_accuracy.json", record)
    (HERE.parent / "docs" / "images").mkdir(exist_ok=True)
    (HERE.parent / "docs" / "images" / "sparsity_accuracy.svg").write_text(draw(curves))


if __name__ == "__main__":
    main()
