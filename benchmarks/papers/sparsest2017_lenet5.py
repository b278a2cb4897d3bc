"""Guo et al. 2016 (DNS) and Molchanov et al. 2017 (SparseVD): the sparsest LeNet-5.

    ./run python benchmarks/reproduce.py sparsest2017_lenet5

As sparsest2017.py, from the network of han2015_lenet5.py. The shares of the four layers are our own.
"""

from __future__ import annotations

from papers import han2015_lenet5
from papers.han2015 import pruned
from papers.harness import Budget, Paper, Row

SPARSE = (0.40, 0.05, 0.005, 0.08)
SPARSEST = (0.30, 0.022, 0.0015, 0.045)  # shares of weights kept

TRIED = (
    "tried on the validation images, seed 0, where the dense network has 0.78 %: 1.74 % in 14 epochs with "
    "these shares, 1.76 % with shares that LAMP chooses; 1.36 % in 40 epochs after all but 8, 20 and 60 "
    "channels were cut out by least squares, because single weights spread over all channels."
)

PAPER = Paper(
    "sparsest2017_lenet5",
    "Guo et al. 2016 and Molchanov et al. 2017, on LeNet-5",
    {
        "280 ×": Row(pruned(*SPARSEST), {"error": 0.75, "rate": 280}, most=0.80, note=TRIED),
        "111 ×": Row(pruned(*SPARSE), {"error": 0.91, "rate": 108}, most=0.91),
    },
    network="lenet-5",
    budget=Budget(dense_epochs=8, epochs=14, rate=4e-3, before=han2015_lenet5.PAPER.budget),
    seeds=3,
    about="From the 12 × network on, in the same way; the first row's bar is "
    "SparseVD's, the second's that of dynamic network surgery.",
)
