"""Oktay et al. 2020 on LeNet-5: the fewest bytes.

    ./run python benchmarks/reproduce.py smallest2020_lenet5

As smallest2020.py, from the network of sparsest2017_lenet5.py.
"""

from __future__ import annotations

from papers.deep_compression2016 import small
from papers.harness import Budget, Paper, Row
from papers.sparsest2017_lenet5 import PAPER as SPARSE
from papers.sparsest2017_lenet5 import SPARSEST, narrow, prune

PAPER = Paper(
    "smallest2020_lenet5",
    "Oktay et al. 2020, on LeNet-5",
    {
        "280 ×, 5 bits": Row(
            small(SPARSEST, (5, 5, 5, 5), prune=prune, build=narrow),
            {"error": 1.0, "bytes": 2845},
            most=1.0,
            limits={"bytes": 2800},
        ),
    },
    network="lenet-5",
    budget=Budget(
        dense_epochs=12, dense_rate=1.5e-3, epochs=10, rate=1e-3, before=SPARSE.budget, shift=1
    ),
    seeds=3,
    about="As on LeNet-300-100, from the 280 × network.",
)
