"""Run a function in two real processes that form one gloo group, and bring its results back."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch

RANKS = 2
SECONDS = 60  # for a whole test; a collective that waits for its partner gives up after half of it

# A fork of a server that has imported torch already starts in milliseconds, and from a clean state.
# The first optimizer of a process imports torch._dynamo, the slowest of them all.
_IMPORTED = ["lilliput.torch", "torch._dynamo", "torch.distributed.fsdp", "pytest"]
_HAS_SERVER = "forkserver" in multiprocessing.get_all_start_methods()
_CONTEXT = multiprocessing.get_context("forkserver" if _HAS_SERVER else "spawn")


def run_on_two_ranks(worker: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Return what ``worker(rank, *arguments)`` returned on rank 0 and on rank 1.

    Results travel through files that ``torch.load`` reads with its safe defaults: tensors, numbers,
    strings, and lists and dicts of them.

    Parameters
    ----------
    worker : function
        A function of a module; each process loads the file that defines it.
    folder : Path
        A folder of this run's own, for the meeting point, the results and each rank's stderr.
    arguments
        Whatever the function takes after the rank.
    """
    if _HAS_SERVER:
        _CONTEXT.set_forkserver_preload(_IMPORTED)
    file, name = worker.__code__.co_filename, worker.__name__
    processes = [
        _CONTEXT.Process(target=_work, args=(rank, file, name, folder, arguments), daemon=True)
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    _watch(processes)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.close()
    if any(codes):
        pytest.fail(f"{name}{arguments}\n" + "\n".join(_explain(folder, codes)), pytrace=False)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


def _watch(processes: list[Any]) -> None:
    """Wait until all are done, one has failed, or time is up; then end those that still run."""
    deadline = time.monotonic() + SECONDS
    running = list(processes)
    while running and not any(process.exitcode for process in processes):
        if not wait([process.sentinel for process in running], deadline - time.monotonic()):
            break
        running = [process for process in processes if process.exitcode is None]
    for process in running:
        process.kill()
    for process in processes:
        process.join()


def _explain(folder: Path, codes: list[int]) -> list[str]:
    lines = []
    for rank, code in enumerate(codes):
        log = folder / f"rank{rank}.stderr"
        text = log.read_text(errors="replace") if log.exists() else ""
        ending = f"killed (its partner failed, or {SECONDS} s were over)" if code == -9 else code
        lines.append(f"--- rank {rank}, exit code: {ending}\n{text}")
    return lines


def _work(rank: int, file: str, name: str, folder: Path, arguments: tuple[Any, ...]) -> None:
    """Be one rank: join the group, call the function, leave the result in a file."""
    with (folder / f"rank{rank}.stderr").open("wb") as log:
        os.dup2(log.fileno(), 2)
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"{folder.as_uri()}/meeting_point",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=SECONDS / 2),
    )
    try:
        spec = spec_from_file_location(f"worker_of_{Path(file).stem}", file)
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        result = getattr(module, name)(rank, *arguments)
        torch.save(result, folder / f"rank{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()
