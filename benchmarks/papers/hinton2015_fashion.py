"""Hinton et al. 2015 on Fashion-MNIST, where a network of this size does not learn all labels.

    ./run python benchmarks/reproduce.py hinton2015_fashion

As hinton2015.py.
"""

from __future__ import annotations

from dataclasses import replace

from papers import hinton2015

PAPER = replace(
    hinton2015.PAPER,
    name="hinton2015_fashion",
    title="Hinton et al. 2015, the same on Fashion-MNIST",
    data="fashion-mnist",
)
