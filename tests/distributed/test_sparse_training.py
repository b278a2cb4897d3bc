"""Pruners that change their minds while a model trains, on two real processes: as on one."""

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

from lilliput.torch import AGPPruner, MovementPruner, RigLPruner, STRPruner

WAYS = ["ddp, compress then wrap", "ddp, wrap then compress", "fsdp2, shard then compress"]


def make(name: str, model: Any, optimizer: Any) -> Any:
    if name == "soft":
        rule = {"initial_sparsity": 0.2, "final_sparsity": 0.7, "end_epoch": 1}
        return AGPPruner(model, [rule], optimizer, soft=True)
    if name == "fisher":
        rule = {"initial_sparsity": 0.2, "total_sparsity": 0.7, "end_epoch": 2, "frequency": 1}
        params = {"training_batches": 3}
        return AGPPruner(model, [rule], optimizer, "fisher", pruning_params=params)
    if name == "rigl":
        return RigLPruner(model, [{"total_sparsity": 0.6}], optimizer, 50, update_every=3)
    if name == "movement":
        return MovementPruner(model, [{"sparsity": 0.6}], optimizer, 1, 6, regular_scale=2.0)
    return STRPruner(model, [{"op_types": ["default"]}], optimizer, decay=0.05, start=-3.0)


def result_of(model: Any, pruner: Any, sparsities: list[float]) -> dict[str, Any]:
    raw = {w.name: w.weight.detach().clone() for w in pruner.get_modules_wrapper()}
    masks = toy.masks_of(pruner)
    if hasattr(model, "reshard"):
        model.reshard()
    pruner.strip()
    return {
        "sparsities": sparsities,
        "masks": masks,
        "raw": raw,
        "stripped": toy.weights_of(model),
    }


def train_on_two(rank: int, name: str, way: str) -> dict[str, Any]:
    is_sharded = way.startswith("fsdp2")
    model = toy.Net(seed=0 if is_sharded else rank)
    if is_sharded:
        mesh = init_device_mesh("cpu", (RANKS,))
        for module in (model.conv, model.body, model):
            fully_shard(module, mesh=mesh)
    parallel: Any = DistributedDataParallel(model) if "wrap then" in way else model
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    pruner = make(name, parallel, optimizer)
    pruner.compress()
    if way.endswith("compress then wrap"):
        parallel = DistributedDataParallel(model)
    return result_of(model, pruner, toy.train(parallel, optimizer, pruner, rank, RANKS))


def train_alone(name: str) -> dict[str, Any]:
    model = toy.Net()
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    pruner = make(name, model, optimizer)
    pruner.compress()
    return result_of(model, pruner, toy.train(model, optimizer, pruner))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["soft", "fisher", "rigl", "movement", "str"])
def test_ranks_agree_bitwise_and_with_one_process(name: str, way: str, tmp_path: Path) -> None:
    first, second = run_on_two_ranks(train_on_two, tmp_path, name, way)
    alone = train_alone(name)
    for key in ("masks", "raw", "stripped"):
        toy.assert_bitwise_equal(first[key], second[key])
    toy.assert_bitwise_equal(first["masks"], alone["masks"])
    for key in ("raw", "stripped"):
        assert first[key].keys() == alone[key].keys()
        for part, tensor in alone[key].items():
            torch.testing.assert_close(first[key][part], tensor, rtol=1e-8, atol=1e-10)
    assert first["sparsities"] == alone["sparsities"]
    assert 0 < alone["sparsities"][-1] < 1
