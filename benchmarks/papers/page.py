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

Lilliput's results next to those reported in the papers its algorithms come from. `benchmarks/results_page.py`
generates this page from `benchmarks/results/papers`; the command above a table reruns its measurement.

The protocol is the same for every row:

- The data are real, and the checksum of the decoded images is verified. Where settings were compared, this
  was done on 5,000 held-out training images (`--valid`); most settings were not tuned at all. The final run
  trains on all training images, and the test images are used **once, after the last epoch**: every error is
  that of the final network, never the best one seen. Anything changed after looking at a test error is noted
  below.
- "dense" is the network before compression. "Same-budget control" is the same network trained for the same
  number of epochs with the same loss, learning rates and teacher but no compression, so that the effect of
  extra training is not mistaken for a gain.
- Figures are the mean over seeds ± the standard deviation of a single seed. The rate counts weights without
  biases, as the papers do. With 10,000 test images, one seed has a standard error of about 0.13 point at an
  error of 1.6 %.
- Training after the dense stage distils from the dense network unless a row says otherwise; papers before
  2018 did not do this. Images of CIFAR-10 are shifted and mirrored in training; those of MNIST are not
  augmented unless a table says so. Convolutional networks train in bfloat16; all errors are measured in
  float32.
"""
MISSING = "Not measured yet; the script is available."


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
    """Return a sentence on a paper's network, data, training schedule and cost per seed."""
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
    network, data = record["settings"]["network"], record["settings"]["data"]
    optimizer = "SGD with augmentation" if data == "cifar-10" else "Adam"
    return (
        f"{network} on {data}; {epochs}{after}, {optimizer}, batches of {first['batch']}. The rows "
        f"of a seed took {max(seconds):,.0f} CPU seconds."
    )
