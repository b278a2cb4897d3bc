"""Write docs/papers.md from what is kept of the papers; results_page.py calls it, and a test compares."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from page_parts import machine
from record import machines, read_json

from papers import PAPERS
from papers.harness import Paper
from papers.tables import Record, table

HEAD = """# The papers' figures

What algorithms reach beside what the papers report that they are named after. This page is written by
`benchmarks/results_page.py` from `benchmarks/results/papers`; the command above a table measures it again.

How it is measured, for every row:

- Real data, with the checksum of the decoded images verified. Where settings were compared, it
  was on 5,000 training images that were set apart (`--valid`); most were not tuned at all. Then all training
  images train, and the test images are looked at **once, after the last epoch**: an error is that of the
  final network, never the best one seen. What was changed after a look at a test error is told below.
- "dense" is the network before compression. "Same-budget control" is the same network, trained for the same
  epochs, by the same loss, learning rates and teacher, with nothing attached: more training alone must not
  pass for a gain.
- The mean over seeds ± the standard deviation of one seed. The rate counts weights, as the papers do, without
  biases. A seed of 10,000 test images has a standard error of about 0.13 point at an error of 1.6 %.
- Training after the dense one is distillation from the dense network: that is a part of our recipe which the
  papers before 2018 did not have. No image is augmented.
"""
MISSING = "Not measured yet; the script is there."


def page() -> str:
    """Return docs/papers.md."""
    papers: list[Paper] = [import_module(f"papers.{name}").PAPER for name in PAPERS]
    return "\n".join([HEAD, *("\n".join(section(paper)) + "\n" for paper in papers)])


def section(paper: Paper) -> Iterator[str]:
    record = read_json(paper.path)
    command = f"`./run python benchmarks/reproduce.py {paper.name}`"
    yield f"## {paper.title}"
    yield ""
    if not any(record.get("rows", {}).values()):
        yield f"{command} · {MISSING}"
        return
    yield f"{command} · {machine(machines(record))}"
    yield ""
    yield from table(paper, record)
    yield ""
    yield f"{paper.about} {cost(paper, record)}"
    notes = [f"- **{name}**: {row.note}" for name, row in paper.rows.items() if row.note]
    if notes:
        yield from ["", *notes]


def cost(paper: Paper, record: Record) -> str:
    """Say on what a paper's rows trained, how long, and what a seed takes."""
    budget = record["settings"]["budget"]
    stages = []
    while budget:
        stages.insert(0, f"{budget['epochs']} at {budget['rate']:g}")
        first, budget = budget, budget["before"]
    epochs = f"{first['dense_epochs']} epochs at {first['dense_rate']:g}"
    after = "" if stages == ["0 at 0"] else f", then {', then '.join(stages)}"
    seconds = [
        sum(found[seed]["cpu_seconds"] for found in record["rows"].values() if seed in found)
        for seed in record["dense"]
    ]
    return (
        f"{record['settings']['network']} on {record['settings']['data']}; {epochs}{after}, Adam, batches of "
        f"{first['batch']}. The rows of a seed took {max(seconds):,.0f} CPU seconds."
    )
