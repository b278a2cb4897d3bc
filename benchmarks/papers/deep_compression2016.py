"""Han et al. 2016, "Deep Compression": prune, round, entropy code.

    ./run python benchmarks/reproduce.py deep_compression2016

A network that was pruned as in han2015.py trains on with its weights rounded to 4 bits (by LSQ's grids, where
the paper has shared values), and ``save(..., compact=True)`` writes it. Judged is the network that is loaded
from the file, and all that is in it counts: biases, scales, names and shapes. The second row is RigL's
(Evci et al. 2020), who count 4 bytes for each weight that is kept, and a mask.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn, optim

from lilliput.torch import LevelPruner, LSQQuantizer, load, save
from papers import han2015
from papers.harness import Budget, Paper, Row, Task, sparse_figures
from papers.networks import NETWORKS

BIAS_BITS = 6
KEPT = han2015.papers_shares("lenet-300-100")


def attach(
    model: nn.Module,
    optimizer: optim.Optimizer,
    layers: Iterable[str],
    bits: tuple[int, ...],
    kept: tuple[float, ...],
) -> None:
    """Keep the zeros, or more of them, and round the other weights, layer by layer."""
    names = [{"op_names": [name]} for name in layers]
    rules = [{**name, "sparsity": 1 - share} for name, share in zip(names, kept, strict=True)]
    LevelPruner(model, rules, optimizer).compress()
    one_scale = {"granularity": "per_tensor"}  # those of channels would be a fifth of the file
    rules = [
        {**name, **one_scale, "quant_types": ["weight"], "quant_bits": few}
        for name, few in zip(names, bits, strict=True)
    ]
    LSQQuantizer(model, rules, optimizer).compress()


def small(
    before: tuple[float, ...],
    bits: tuple[int, ...],
    *kept: float,
    prune: Callable[..., nn.Module] = han2015.prune,
    build: Callable[[], nn.Module] | None = None,
) -> Callable[[Task], dict[str, Any]]:
    """Return a row's function: round a network that was pruned in the training before, maybe prune more.

    ``prune`` is that training, and ``build`` returns an untrained network of its sizes.
    """

    def run(task: Task) -> dict[str, Any]:
        pruned = prune(task.before(), *before)
        layers = han2015.KEPT[task.network]
        model, _ = task.retrain(lambda *both: attach(*both, layers, bits, kept or before), pruned)
        whole = NETWORKS[task.network]()
        plain = whole if build is None else build()
        floats = 4 * sum(tensor.numel() for tensor in whole.parameters())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network"
            size = save(model, path, compact=True, bias_bits=BIAS_BITS)
            loaded = load(plain, path)
        figures = {"error": task.error(loaded), "bytes": size, "smaller": floats / size}
        return figures | sparse_figures(loaded, of=whole)

    return run


PAPER = Paper(
    "deep_compression2016",
    "Han et al. 2016, Deep Compression",
    {
        "12 ×, 4 bits": Row(
            small(KEPT, (4, 4, 4)),
            {"error": 1.58, "bytes": 27_000},
            limits={"bytes": 27_000},
        ),
        "17 ×, 4 bits": Row(
            small(KEPT, (4, 4, 4), 0.055, 0.075, 0.26),
            {"error": 1.69, "bytes": 16_100},
            most=1.69,
            limits={"bytes": 16_100},
            note="a first run of seed 0 had a scale per channel: 1.67 % in 16,178 bytes; with 12 ×, "
            "1.66 % in 21,659.",
        ),
    },
    budget=Budget(epochs=5, rate=1e-3, before=han2015.PAPER.budget),
    about="The bytes are those of the whole file that `save(..., compact=True)` writes, and the error is "
    "that of the network loaded from it. The second row's figures are those of RigL+ (Evci et al. 2020).",
)
