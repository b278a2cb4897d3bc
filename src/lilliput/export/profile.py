"""Measure the time of each layer within an ONNX file, including the operators fused or moved with it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.export.targets.executed import Array
from lilliput.extras import require


class Profile:
    """A session of ONNX Runtime that records the time of each kernel.

    Kernels that belong to no layer (pooling, additions, changes of layout, quantizers) count towards the
    layer that was executed before them, so that the times of all layers add up to that of the file.

    Parameters
    ----------
    path : Path
        The file.
    threads : int
        Threads of one operation.
    """

    def __init__(self, path: Path, threads: int) -> None:
        runtime = require("onnxruntime", "executing ONNX needs pip install 'lilliput[onnx]'")
        self.path = path
        self._folder = tempfile.TemporaryDirectory()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name, "profile"))
        self.session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def run(self, arrays: Sequence[Array]) -> None:
        """Execute the file once."""
        names = [x.name for x in self.session.get_inputs()]
        self.session.run(None, dict(zip(names, arrays, strict=True)))

    def finish(self) -> dict[str, float]:
        """Return the milliseconds of each layer by its name in the file, as the middle of all runs."""
        with self._folder:
            events = json.loads(Path(self.session.end_profiling()).read_text(encoding="utf-8"))
        owners = self._owners()
        times: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                times.setdefault(event["name"].removesuffix("_kernel_time"), []).append(
                    event["dur"]
                )
        return sum_by_owner({name: middle(found) for name, found in times.items()}, owners)

    def _owners(self) -> dict[str, str]:
        """Return the layer of each kernel that represents one, by all of its possible names."""
        import onnx_ir

        from lilliput.export.kernels import owners_of
        from lilliput.export.passes.graph import layers_of

        graph = onnx_ir.load(self.path).graph
        own = {str(node.name): str(node.name) for node in layers_of(graph)}
        return {**owners_of(graph), **own}


def sum_by_owner(times: Mapping[str, float], owners: Mapping[str, str]) -> dict[str, float]:
    """Return milliseconds by layer, from microseconds of kernels in the order of their execution.

    Examples
    --------
    >>> sum_by_owner({"pad": 1.0, "relu_nchwc": 40.0, "pool": 9.0, "fc": 5.0}, {"relu": "conv", "fc": "fc"})
    {'conv': 0.05, 'fc': 0.005}
    """
    from lilliput.export.kernels import plain_name

    found: dict[str, float] = {}
    waiting, owner = 0.0, ""
    for name, time in times.items():
        owner = owners.get(name) or owners.get(plain_name(name)) or owner
        if not owner:  # before the first layer
            waiting += time
            continue
        found[owner] = found.get(owner, 0.0) + (time + waiting) / 1000
        waiting = 0.0
    return found


def middle(times: Sequence[Any]) -> float:
    """Return the mean of the middle half, which is steadier than a median of integer microseconds.

    Examples
    --------
    >>> middle([4, 5, 6, 90])
    5.5
    """
    ordered = np.sort(np.asarray(times, float))
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())
