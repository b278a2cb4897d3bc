"""Channel pruners on two real processes: the same channels go everywhere, companions included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from launch import RANKS, run_on_two_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lilliput.speedup.channels import channel_groups
from lilliput.torch import ActivationMeanRankPruner, L1NormPruner, TaylorFOWeightPruner

PRUNERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "l1": (L1NormPruner, {}),
    "mean activation": (ActivationMeanRankPruner, {"training_batches": 2}),
    "taylor": (TaylorFOWeightPruner, {"training_batches": 2}),
}
RULES = [{"sparsity": 0.5}]


def masks_of(pruner: Any) -> dict[str, torch.Tensor]:
    wrappers = (*pruner.get_modules_wrapper(), *pruner.companions())
    return {wrapper.name: wrapper.weight_mask.clone() for wrapper in wrappers}


def train(model: Any, name: str, groups: Any, rank: int, ranks: int) -> dict[str, Any]:
    cls, arguments = PRUNERS[name]
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    pruner = cls(model, RULES, optimizer, groups=groups, **arguments)
    pruner.compress()
    for epoch in range(2):
        toy.train_epoch(model, optimizer, epoch, rank, ranks)
    masks = masks_of(pruner)
    raw = {w.name: w.weight.detach() for w in (*pruner.get_modules_wrapper(), *pruner.companions())}
    pruner.strip()
    return {"masks": masks, "raw": raw}


def train_under_ddp(rank: int, name: str) -> dict[str, Any]:
    model = toy.Net()
    groups = channel_groups(model, toy.probe())
    return train(DistributedDataParallel(model), name, groups, rank, RANKS)


def train_under_fsdp2(rank: int, name: str) -> dict[str, Any]:
    model = toy.Net()
    groups = channel_groups(model, toy.probe())
    mesh = init_device_mesh("cpu", (RANKS,))
    for module in (model.conv, model.body, model):
        fully_shard(module, mesh=mesh)
    return train(model, name, groups, rank, RANKS)


@pytest.mark.parametrize("name", PRUNERS)
@pytest.mark.parametrize("worker", [train_under_ddp, train_under_fsdp2])
def test_all_ranks_prune_what_one_process_prunes(worker: Any, name: str, tmp_path: Path) -> None:
    first, second = run_on_two_ranks(worker, tmp_path, name)
    toy.assert_bitwise_equal(first["masks"], second["masks"])
    model = toy.Net()
    alone = train(model, name, channel_groups(model, toy.probe()), 0, 1)
    toy.assert_bitwise_equal(first["masks"], alone["masks"])
    assert set(first["masks"]) == {"conv", "body", "head.weight"}
    for key, mask in first["masks"].items():
        assert mask.numel() > mask.count_nonzero() > 0, key
        assert not first["raw"][key][mask == 0].any(), key
