"""DistributedDataParallel, on two real processes: one model, one set of masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from launch import RANKS, run_on_two_ranks
from torch.nn.parallel import DistributedDataParallel

ORDERS = ["compress then wrap", "wrap then compress"]


def build(rank: int, algorithm: str, order: str) -> tuple[Any, ...]:
    # Each rank starts from weights of its own: DDP is to give all of them those of rank 0.
    model = toy.Net(seed=rank)
    parallel = DistributedDataParallel(model) if order == "wrap then compress" else model
    optimizer = toy.OPTIMIZERS["sgd"](model.parameters())
    compressor = toy.compress(algorithm, parallel, optimizer)
    if order == "compress then wrap":
        parallel = DistributedDataParallel(model)
    return model, parallel, optimizer, compressor


def train_under_ddp(rank: int, algorithm: str, order: str) -> dict[str, Any]:
    model, parallel, optimizer, compressor = build(rank, algorithm, order)
    return {
        "sparsities": toy.train(parallel, optimizer, compressor, rank, RANKS),
        "masks": toy.masks_of(compressor),
        "weights": toy.weights_of(model),
        "outputs": parallel(toy.probe()).detach(),
        "layers": compressor.state().layers,
    }


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("algorithm", list(toy.ALGORITHMS))
def test_ranks_agree_bitwise_and_with_one_process(
    algorithm: str, order: str, tmp_path: Path
) -> None:
    first, second = run_on_two_ranks(train_under_ddp, tmp_path, algorithm, order)
    alone = toy.train_alone(algorithm)
    toy.assert_bitwise_equal(first["masks"], second["masks"])
    toy.assert_bitwise_equal(first["weights"], second["weights"])
    toy.assert_bitwise_equal(first["masks"], alone["masks"])
    toy.assert_equal_but_for_rounding(first["weights"], alone["weights"])
    torch.testing.assert_close(first["outputs"], alone["outputs"], rtol=1e-10, atol=1e-14)
    toy.assert_pruned_weights_are_zero(first["masks"], first["weights"], algorithm != "naive")
    assert first["sparsities"] == alone["sparsities"]
    assert first["layers"] == alone["layers"]  # names without the 'module.' of DDP among it
    if algorithm == "agp":
        start, middle, end = first["sparsities"]
        assert 0 < start < middle < end


def corrupt_the_mask_of_rank_1(rank: int, order: str) -> dict[str, Any]:
    _, parallel, _, compressor = build(rank, "level", order)
    mask = compressor.get_modules_wrapper()[0].weight_mask
    if rank == 1:
        mask.copy_(1 - mask)
    before = mask.clone()
    outputs = parallel(toy.probe()).detach()
    return {"before": before, "after": mask.clone(), "outputs": outputs}


@pytest.mark.parametrize("order", ORDERS)
def test_masks_follow_rank_0_at_each_forward(order: str, tmp_path: Path) -> None:
    first, second = run_on_two_ranks(corrupt_the_mask_of_rank_1, tmp_path, order)
    assert not torch.equal(first["before"], second["before"])
    assert torch.equal(first["after"], first["before"])
    assert torch.equal(second["after"], first["before"])
    assert torch.equal(second["outputs"], first["outputs"])


def strip_after_training(rank: int, order: str) -> dict[str, Any]:
    model, parallel, optimizer, compressor = build(rank, "agp", order)
    toy.train(parallel, optimizer, compressor, rank, RANKS)
    before = parallel(toy.probe()).detach()
    compressor.strip()
    if order == "compress then wrap":
        # The pruner never saw this DDP, which would go on to broadcast masks that are no more.
        parallel = DistributedDataParallel(model)
    return {
        "before": before,
        "after": parallel(toy.probe()).detach(),
        "keys": list(model.state_dict()),
        "is_plain": type(model.conv) is torch.nn.Conv2d,
    }


@pytest.mark.parametrize("order", ORDERS)
def test_strip_leaves_a_plain_model_with_the_same_outputs(order: str, tmp_path: Path) -> None:
    for result in run_on_two_ranks(strip_after_training, tmp_path, order):
        assert torch.equal(result["before"], result["after"])
        assert result["keys"] == list(toy.Net().state_dict())
        assert result["is_plain"]
