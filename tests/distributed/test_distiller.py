"""Distillation under DistributedDataParallel, on two real processes: one student, one projection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launch import RANKS, run_on_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lilliput.errors import StageError
from lilliput.torch import Distiller, LevelPruner

RULES = [{"temperature": 2.0}, {"op_names": ["0"], "loss": "mse"}]


def make(width: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double()


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 4, generator=generator, dtype=torch.float64) for _ in range(4)]


def train(rank: int, ranks: int, order: str) -> dict[str, Any]:
    model = make(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    parallel: Any = model
    if ranks > 1 and order == "wrap first":
        parallel = DistributedDataParallel(model)
    distiller = Distiller(parallel, RULES, optimizer, teacher=make(9, seed=3))
    distiller.compress()
    LevelPruner(model, [{"sparsity": 0.4}], optimizer).compress()
    if ranks > 1 and order == "wrap last":
        parallel = DistributedDataParallel(model)
    for x in batches():
        optimizer.zero_grad()
        parallel(x[rank::ranks])
        distiller.loss().backward()
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.5)
        optimizer.step()
    return {
        "weights": [p.detach().clone() for p in model.parameters()],
        "projection": distiller.parameters()[0].detach().clone(),
    }


def train_on_two(rank: int, order: str) -> dict[str, Any]:
    return train(rank, RANKS, order)


@pytest.mark.parametrize("order", ["wrap first", "wrap last"])
def test_ranks_agree_bitwise_and_with_one_process(order: str, tmp_path: Path) -> None:
    first, second = run_on_two_ranks(train_on_two, tmp_path, order)
    alone = train(0, 1, order)
    for one, other, expected in zip(
        [*first["weights"], first["projection"]],
        [*second["weights"], second["projection"]],
        [*alone["weights"], alone["projection"]],
        strict=True,
    ):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, expected, rtol=1e-8, atol=1e-10)


def make_with_own_weights(rank: int) -> dict[str, Any]:
    try:
        Distiller(make(5, seed=rank))
    except StageError as error:
        return {"said": str(error)}
    return {"said": ""}


def test_teachers_that_differ_between_processes_are_refused(tmp_path: Path) -> None:
    for result in run_on_two_ranks(make_with_own_weights, tmp_path):
        assert "its weights differ between the processes" in result["said"]
