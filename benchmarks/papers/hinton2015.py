"""Hinton et al. 2015, "Distilling the knowledge in a neural network": what a teacher gives a pruned network.

    ./run python benchmarks/reproduce.py hinton2015

The network of sparsest2017.py once more, over the same epochs: with the labels alone, with the dense network
as the teacher alone, and with both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from papers import sparsest2017
from papers.han2015 import papers_shares, prune, pruned, schedule
from papers.harness import Paper, Row, Task, sparse_figures


def taught(labels: float, teacher: float) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function, with what both count in the loss."""

    def run(task: Task) -> dict[str, Any]:
        student = prune(task.before(), *papers_shares(task.network))
        attach = schedule(task, sparsest2017.SPARSEST)
        model = task.retrain(attach, student, (labels, teacher))[1].strip()
        return {"error": task.error(model)} | sparse_figures(model)

    return run


ROWS = {
    "labels alone": Row(taught(1.0, 0.0)),
    "the teacher alone": Row(taught(0.0, 1.0)),
    "both": Row(pruned(*sparsest2017.SPARSEST)),  # as the budget has it: 0.1 and 1.0
}

PAPER = Paper(
    "hinton2015",
    "Hinton et al. 2015, Distillation of a network that is pruned 68 ×",
    ROWS,
    budget=sparsest2017.PAPER.budget,
    about="The 12 × network, which had the teacher, is pruned on to 68 ×. The paper has no such figure.",
)
