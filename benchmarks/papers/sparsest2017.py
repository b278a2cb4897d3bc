"""Guo et al. 2016 (DNS) and Molchanov et al. 2017 (SparseVD): the sparsest LeNet-300-100.

    ./run python benchmarks/reproduce.py sparsest2017

From the network of han2015.py on, by the same means: AGP's schedule, and the dense network as the teacher.
The shares of the three layers are our own.
"""

from __future__ import annotations

from papers import han2015
from papers.han2015 import pruned
from papers.harness import Budget, Paper, Row

SPARSE = (0.0145, 0.036, 0.26)
SPARSEST = (0.0113, 0.0326, 0.26)  # shares of weights kept

TRIED = (
    "tried on the validation images, seed 0, at 70 × from the dense network in 20 epochs: 2.46 % at a "
    "learning rate of 6e-3, 2.74 % at 2e-3; 3.04 % without the teacher; 2.72 % by soft thresholds "
    "(`soft=True`) at 2e-3, which took twice the time; dense 1.94 %. One standard error is 0.2 point there."
)

PAPER = Paper(
    "sparsest2017",
    "Guo et al. 2016, Dynamic network surgery; Molchanov et al. 2017, Variational dropout",
    {
        "68 ×": Row(
            pruned(*SPARSEST),
            {"error": 1.92, "rate": 68},
            most=1.92,
            note=TRIED,
        ),
        "56 ×": Row(pruned(*SPARSE), {"error": 1.99, "rate": 56}, most=1.99),
    },
    budget=Budget(epochs=25, rate=6e-3, before=han2015.PAPER.budget),
    about="From the 12 × network on, in the same way; the first row's bar is "
    "SparseVD's, the second's that of dynamic network surgery.",
)
