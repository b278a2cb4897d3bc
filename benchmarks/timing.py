"""How the benchmarks count and time: interleaved runs on one thread, MACs from torch's counter."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def call(model: torch.nn.Module, inputs: Any) -> Any:
    """Run a model on a tensor, a tuple of positional arguments, or a dict of keyword arguments."""
    with torch.no_grad():
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def latency_ratio(before: Callable[[], Any], after: Callable[[], Any], runs: int = 15) -> float:
    """Return how many times as long ``after`` takes, from the medians of interleaved runs.

    One thread and CPU time: the latency of an idle machine, even on a busy one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds: tuple[list[float], list[float]] = ([], [])
    try:
        for index in range(runs + 2):
            for run, kept in zip((before, after), seconds, strict=True):
                start = time.thread_time()
                run()
                if index >= 2:  # the first two warm up
                    kept.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(seconds[1]) / statistics.median(seconds[0])


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def macs(model: torch.nn.Module, inputs: Any) -> int:
    """Return the multiply-accumulates of one forward pass (convolutions and matrix products)."""
    with FlopCounterMode(display=False) as counter:
        call(model, inputs)
    return counter.get_total_flops() // 2


def state_bytes(model: torch.nn.Module) -> int:
    """Return the size of the saved state dict."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()
