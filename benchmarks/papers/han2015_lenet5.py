"""Han et al. 2015 on LeNet-5: a twelfth of its weights without loss.

    ./run python benchmarks/reproduce.py han2015_lenet5

As han2015.py; the paper keeps 66, 12, 8 and 19 % of the weights of the four layers.
"""

from __future__ import annotations

from papers.han2015 import a_twelfth
from papers.harness import Budget, Paper

PAPER = Paper(
    "han2015_lenet5",
    "Han et al. 2015, on LeNet-5",
    a_twelfth("lenet-5", error=0.77, reference=0.80),
    network="lenet-5",
    budget=Budget(dense_epochs=8, epochs=8),
    seeds=3,
    about="As on LeNet-300-100, with fewer epochs.",
)
