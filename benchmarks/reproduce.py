"""Reproduce the figures of a paper, next to the same training without compression.

    ./run python benchmarks/reproduce.py han2015                    # the test error, kept in results/papers
    ./run python benchmarks/reproduce.py han2015 --valid --seeds 1  # to choose settings: nothing is kept
    ./run python benchmarks/reproduce.py data [--data FOLDER]       # says which data sets are found

Each paper is a file in benchmarks/papers; results_page.py writes docs/papers.md from the stored results. An
interrupted run is resumed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch
from papers import PAPERS
from papers.datasets import SOURCES, load
from papers.harness import Paper
from papers.tables import table
from record import read_json


def repeat(paper: Paper, options: argparse.Namespace) -> None:
    """Run the rows and seeds that are not stored yet, and print the table."""
    names = options.rows or paper.names
    if unknown := set(names) - set(paper.names):
        raise SystemExit(f"{paper.name} has no rows {sorted(unknown)}; it has {paper.names}.")
    if options.epochs is not None:
        paper = replace(paper, budget=replace(paper.budget, epochs=options.epochs))
    data = load(paper.data, options.data)
    record = {} if options.valid else read_json(paper.path)
    for seed in options.seeds or range(paper.seeds):
        task = paper.task(data, seed, options.valid)
        record = paper.run_seed(task, record, names)
    print("\n".join(table(paper, record)))


def show_data(folder: Path | None) -> None:
    for name in SOURCES:
        try:
            data = load(name, folder)
        except SystemExit as missing:
            print(missing)
        else:
            sizes = [f"{part} {images.shape}" for part, (images, _) in data._asdict().items()]
            print(f"{name}: {', '.join(sizes)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paper", choices=["data", *PAPERS])
    parser.add_argument("--data", type=Path, help="folder that has the data")
    parser.add_argument("--seeds", type=int, nargs="+", help="which seeds, by default all")
    parser.add_argument("--rows", nargs="+", help="which rows, by default all and the control")
    parser.add_argument("--valid", action="store_true", help="judge on the validation images")
    parser.add_argument("--epochs", type=int, help="with --valid: another budget")
    options = parser.parse_args()
    if options.epochs is not None and not options.valid:
        parser.error("--epochs goes with --valid: kept figures are all of one budget.")
    torch.set_num_threads(1)
    if options.paper == "data":
        show_data(options.data)
    else:
        repeat(import_module(f"papers.{options.paper}").PAPER, options)


if __name__ == "__main__":
    main()
