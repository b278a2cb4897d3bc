"""Oktay et al. 2020, "Scalable model compression by entropy penalized reparameterization": the fewest bytes.

    ./run python benchmarks/reproduce.py smallest2020

As deep_compression2016.py, from the network of sparsest2017.py.
"""

from __future__ import annotations

from papers import sparsest2017
from papers.deep_compression2016 import small
from papers.harness import Budget, Paper, Row

PAPER = Paper(
    "smallest2020",
    "Oktay et al. 2020, Scalable model compression by entropy penalized reparameterization",
    {
        "68 ×, 4 bits": Row(
            small(sparsest2017.SPARSEST, 4),
            {"error": 1.9, "bytes": 8560},
            most=1.9,
            limits={"bytes": 5600},
        ),
    },
    budget=Budget(epochs=5, rate=1e-3, before=sparsest2017.PAPER.budget),
    about="As above, from the 68 × network.",
)
