"""ONNX files executed by ONNX Runtime on one thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from quant_peers import quietly
from torch import Tensor, nn

from lilliput.export.run import open_session


class File:
    """An ONNX file, open in ONNX Runtime, on one thread."""

    def __init__(self, path: Path) -> None:
        self.session = open_session(path, threads=1)
        self.names = [one.name for one in self.session.get_inputs()]
        self.bytes = path.stat().st_size

    def __call__(self, *inputs: Tensor) -> Tensor:
        feed = {name: x.numpy() for name, x in zip(self.names, inputs, strict=True)}
        return torch.from_numpy(self.session.run(None, feed)[0])


def float_file(
    model: nn.Module, example: tuple[Tensor, ...], path: Path, open_axes: tuple[int, ...] = (0,)
) -> File:
    """Return the float model as exported by torch itself, with dynamic axes."""
    shapes = tuple(dict.fromkeys(open_axes, torch.export.Dim.DYNAMIC) for _ in example)
    settings: dict[str, Any] = {"external_data": False, "dynamic_shapes": shapes}
    with quietly():
        torch.onnx.export(model, example, path, dynamo=True, verbose=False, **settings)
    return File(path)


def all_outputs(model: Callable[..., Tensor], inputs: tuple[Tensor, ...], batch: int) -> Tensor:
    """Return the outputs of a model or file for all inputs, batch by batch."""
    with torch.no_grad():
        parts = zip(*(x.split(batch) for x in inputs), strict=True)
        return torch.cat([model(*part) for part in parts])
