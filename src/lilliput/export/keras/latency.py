"""Measure the latency of a LiteRT file on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from lilliput.errors import ExportError


def litert_latency(
    path: str | os.PathLike[str], batch_size: int = 1, *, threads: int = 1, repeats: int = 30
) -> float:
    """Return the milliseconds that LiteRT takes for one batch: the minimum of several runs.

    Parameters
    ----------
    path : str or path-like
        A ``.tflite`` file.
    batch_size : int
        The first size of the inputs, if it is dynamic.
    threads : int
        The number of threads.
    repeats : int
        The number of runs; other load makes some of them slower, none faster.
    """
    from lilliput.export.keras.litert.run import interpreter_of

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ExportError(f"{path}: it cannot be read: {error}") from error
    interpreter = interpreter_of(data, threads=threads)
    generator = np.random.default_rng(0)
    arrays = []
    for detail in interpreter.get_input_details():
        shape = [int(x) for x in detail["shape"]]
        if len(shape) and int(detail["shape_signature"][0]) < 0:
            shape[0] = batch_size
            interpreter.resize_tensor_input(detail["index"], shape)
        arrays.append((detail["index"], generator.random(shape).astype(detail["dtype"])))
    interpreter.allocate_tensors()
    seconds = []
    for index, array in arrays:
        interpreter.set_tensor(index, array)
    for _ in range(repeats + 1):
        start = time.perf_counter()
        interpreter.invoke()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:]) * 1000
