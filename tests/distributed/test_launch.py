"""The launcher of this folder: a rank that fails or hangs fails the test, and says why."""

from __future__ import annotations

import time
from pathlib import Path

import launch
import pytest
import torch
from launch import RANKS, run_on_two_ranks


def add_ranks(rank: int, start: float) -> dict[str, torch.Tensor]:
    total = torch.tensor(start + rank)
    torch.distributed.all_reduce(total)
    return {"total": total}


def fail_on_rank_1(rank: int) -> None:
    if rank == 1:
        raise ValueError("rank 1 is unwell")
    torch.distributed.barrier()


def sleep_on_rank_0(rank: int) -> None:
    torch.distributed.barrier()  # a partner that leaves early would fail the others' start
    time.sleep(100 * (rank == 0))


def test_both_ranks_bring_back_what_they_computed_together(tmp_path: Path) -> None:
    results = run_on_two_ranks(add_ranks, tmp_path, 10.0)
    assert [float(result["total"]) for result in results] == [21.0] * RANKS


def test_a_rank_that_fails_is_reported_and_its_partner_ended(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)rank 1, exit code: 1.*is unwell"):
        run_on_two_ranks(fail_on_rank_1, tmp_path)


def test_a_rank_that_hangs_is_ended_when_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "SECONDS", 2)
    with pytest.raises(pytest.fail.Exception, match="rank 0, exit code: killed"):
        run_on_two_ranks(sleep_on_rank_0, tmp_path)
