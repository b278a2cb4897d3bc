"""Guo et al. 2016 (DNS) and Molchanov et al. 2017 (SparseVD): the sparsest LeNet-300-100.

    ./run python benchmarks/reproduce.py sparsest2017

By the same means as han2015.py, over more epochs: AGP's schedule, and the dense network as the teacher. The
shares of the three layers are between those of the two papers.
"""

from __future__ import annotations

from papers.han2015 import pruned
from papers.harness import Budget, Paper, Row

PAPER = Paper(
    "sparsest2017",
    "Guo et al. 2016, Dynamic network surgery; Molchanov et al. 2017, Variational dropout",
    {
        "68 ×": Row(pruned(0.0108, 0.031, 0.44), {"error": 1.92, "rate": 68}, most=1.92),
        "56 ×": Row(pruned(0.014, 0.038, 0.30), {"error": 1.99, "rate": 56}, most=1.99),
    },
    budget=Budget(epochs=40, rate=6e-3),
)
