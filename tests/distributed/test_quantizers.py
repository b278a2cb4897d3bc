"""Ranges of activations under DistributedDataParallel, on two real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launch import run_on_two_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lilliput.torch import LSQQuantizer, PTQQuantizer, QATQuantizer

RULES = [{"op_types": ["Linear"]}]


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def batches(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(1024, 4, generator=generator) * (1 + 2 * rank) for _ in range(3)]


def ranges_of(quantizer: Any) -> dict[str, torch.Tensor]:
    names = ("input_low", "input_high", "input_scale", "input_zero_point")
    wrappers = quantizer.get_modules_wrapper()
    return {f"{w.name}.{name}": getattr(w, name).clone() for w in wrappers for name in names}


def calibrate(rank: int, observer: str) -> dict[str, torch.Tensor]:
    quantizer = PTQQuantizer(make(), [{**RULES[0], "observer": observer}])
    quantizer.compress()
    quantizer.calibrate(batches(rank))
    return ranges_of(quantizer)


@pytest.mark.parametrize("observer", ["minmax", "mse"])
def test_calibration_sees_the_data_of_all_processes(observer: str, tmp_path: Path) -> None:
    first, second = run_on_two_ranks(calibrate, tmp_path, observer)
    alone = PTQQuantizer(make(), [{**RULES[0], "observer": observer}])
    alone.compress()
    alone.calibrate([*batches(0), *batches(1)])
    for name, expected in ranges_of(alone).items():
        assert torch.equal(first[name], second[name])
        tolerance = 0 if observer == "minmax" else 0.03  # the bins of histograms differ
        torch.testing.assert_close(first[name], expected, rtol=tolerance, atol=3 * tolerance)


def train(rank: int) -> dict[str, torch.Tensor]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    quantizer = QATQuantizer(model, RULES, optimizer)
    parallel = DistributedDataParallel(quantizer.compress())
    for batch in batches(rank):
        optimizer.zero_grad()
        parallel(batch).square().mean().backward()
        optimizer.step()
    return ranges_of(quantizer)


def test_processes_that_train_together_have_the_mean_of_their_ranges(tmp_path: Path) -> None:
    first, second = run_on_two_ranks(train, tmp_path)
    low = [[float(x.min()) for x in batches(rank)] for rank in (0, 1)]
    mean = sum(x[0] for x in low) / 2  # after the first step, both have the mean
    for step in (1, 2):
        mean = sum(mean + 0.01 * (x[step] - mean) for x in low) / 2
    for name, value in first.items():
        assert torch.equal(value, second[name])
    assert float(first["0.input_low"]) == pytest.approx(mean, rel=1e-5)


def train_scales(rank: int, order: str) -> dict[str, torch.Tensor]:
    model: Any = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parallel = DistributedDataParallel(model) if order == "wrap then compress" else model
    quantizer = LSQQuantizer(parallel, RULES, optimizer)
    quantizer.compress()
    if order == "compress then wrap":
        parallel = DistributedDataParallel(model)
    for batch in batches(rank):
        optimizer.zero_grad()
        parallel(batch).square().mean().backward()
        optimizer.step()
    wrappers = quantizer.get_modules_wrapper()
    return {f"{w.name}.{k}": p.detach().clone() for w in wrappers for k, p in w.named_parameters()}


@pytest.mark.parametrize("order", ["compress then wrap", "wrap then compress"])
def test_learned_scales_are_the_same_in_all_processes(order: str, tmp_path: Path) -> None:
    first, second = run_on_two_ranks(train_scales, tmp_path, order)
    assert len(first) == 4
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-6, atol=0)


def train_unevenly(rank: int, algorithm: str) -> dict[str, torch.Tensor]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    cls = {"qat": QATQuantizer, "lsq": LSQQuantizer}[algorithm]
    quantizer = cls(model, RULES, optimizer)
    parallel = DistributedDataParallel(quantizer.compress())
    steps = 0
    with parallel.join():
        for batch in [*batches(rank), *batches(rank)][: 3 + 2 * rank]:
            optimizer.zero_grad()
            parallel(batch).square().mean().backward()
            optimizer.step()
            steps += 1
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantizer.strip()
    assert not model._forward_pre_hooks
    return {**tensors, "steps": torch.tensor(steps)}


@pytest.mark.parametrize("algorithm", ["qat", "lsq"])
def test_processes_with_uneven_inputs_end_with_the_same_model(
    algorithm: str, tmp_path: Path
) -> None:
    first, second = run_on_two_ranks(train_unevenly, tmp_path, algorithm)
    assert [int(x.pop("steps")) for x in (first, second)] == [3, 5]
    assert any("input_scale" in name for name in first)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
