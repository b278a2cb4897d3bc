"""A written file that is called like the model it came from, so that one evaluation fits both.

>>> import tempfile, torch
>>> from lilliput.torch import export_onnx
>>> model, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
>>> with tempfile.TemporaryDirectory() as folder:
...     result = export_onnx(model, f"{folder}/linear.onnx", x)
...     file = open_file(result.path)
>>> torch.allclose(file(x), model(x), atol=1e-6)
True
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.errors import ConfigError, MissingExtraError, StateError
from lilliput.extras import require

Array = np.ndarray[Any, Any]


def open_file(path: str | os.PathLike[str], threads: int | None = None) -> ExecutedFile:
    """Open an ``.onnx`` file in ONNX Runtime or a ``.tflite`` file in LiteRT, to call it.

    Parameters
    ----------
    path : str or path-like
        The file.
    threads : int, optional
        How many threads execute it; by default as many as torch uses, or one per processor.
    """
    place = Path(path)
    kinds = {".onnx": OnnxFile, ".tflite": LiteRTFile}
    if place.suffix.lower() not in kinds:
        raise ConfigError(f"{place}: expected a file that ends in .onnx or .tflite.")
    if not place.is_file():
        raise ConfigError(f"{place}: there is no such file.")
    return kinds[place.suffix.lower()](place, threads or default_threads())


def default_threads() -> int:
    """Return how many threads torch uses or would use: ``OMP_NUM_THREADS``, or one per processor."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ExecutedFile:
    """A file in its runtime. Call it with torch tensors or NumPy arrays; it answers in kind.

    ``eval``, ``train`` and ``to`` do nothing, and ``predict`` runs in batches, so that functions
    written for a torch or Keras model take it as it is.
    """

    runtime = ""
    training = False

    def __init__(self, path: Path, threads: int) -> None:
        self.path, self.threads = path, threads

    @property
    def bytes(self) -> int:
        """The size of the file, with the weights that an ONNX file may have beside it."""
        return self.path.stat().st_size

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs for inputs in the order of the file, or by name."""
        raise NotImplementedError

    def __call__(self, *inputs: Any, training: bool = False, **named: Any) -> Any:
        """Return the outputs, one or a tuple of them."""
        if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
            inputs = tuple(inputs[0])
        values = [*inputs, *named.values()]
        if not values:
            raise ConfigError(f"{self.path.name}: called without inputs.")
        arrays = [
            x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x) for x in values
        ]
        outputs = [_like(x, values[0]) for x in self.run(arrays, list(named))]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def predict(self, x: Any, batch_size: int = 32, verbose: Any = 0) -> Any:
        """Return the outputs for all rows of ``x``, as ``predict`` of a Keras model does."""
        inputs = list(x) if isinstance(x, (tuple, list)) else [x]
        starts = range(0, len(inputs[0]), batch_size)
        parts = [self(*(np.asarray(i[s : s + batch_size]) for i in inputs)) for s in starts]
        if isinstance(parts[0], tuple):
            return [np.concatenate(column) for column in zip(*parts, strict=True)]
        return np.concatenate(parts)

    def eval(self) -> ExecutedFile:
        """Return itself: a file has no training mode."""
        return self

    def train(self, mode: bool = True) -> ExecutedFile:
        """Return itself: a file cannot be trained."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> ExecutedFile:
        """Return itself: it stays where its runtime is."""
        return self


class OnnxFile(ExecutedFile):
    """An ONNX file in ONNX Runtime."""

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads)
        from lilliput.export.run import open_session

        try:
            self.session = open_session(path, threads=threads)
        except MissingExtraError:
            raise
        except Exception as error:  # its exceptions share no public base
            raise StateError(f"{path}: ONNX Runtime cannot read the file ({error}).") from error
        self.names = [x.name for x in self.session.get_inputs()]
        self.runtime = f"ONNX Runtime {version('onnxruntime')}"

    @property
    def bytes(self) -> int:
        """The size of the file, and of weights beside it."""
        from lilliput.export.packed import external_files

        return sum(x.stat().st_size for x in (self.path, *external_files(self.path)))

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs."""
        _check_count(self.path, len(arrays), len(self.names))
        feeds = dict(zip(self.order(names), arrays, strict=True))
        outputs: list[Array] = self.session.run(None, feeds)
        return outputs

    def order(self, names: Sequence[str]) -> list[str]:
        """Return the inputs of the file in the order in which they are given, the named ones last."""
        return [*(name for name in self.names if name not in names), *names]


class LiteRTFile(ExecutedFile):
    """A LiteRT file in its interpreter."""

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads)
        message = "running a .tflite file needs pip install 'lilliput[litert]'"
        runtime = require("ai_edge_litert.interpreter", message)
        try:
            self.interpreter = runtime.Interpreter(str(path), num_threads=threads)
        except (ValueError, RuntimeError) as error:
            raise StateError(f"{path}: LiteRT cannot read the file ({error}).") from error
        self.runtime = f"LiteRT {version('ai-edge-litert')}"
        self._shapes: list[tuple[int, ...]] = []

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs."""
        details = self.interpreter.get_input_details()
        _check_count(self.path, len(arrays), len(details))
        if self._shapes != [x.shape for x in arrays]:
            for detail, array in zip(details, arrays, strict=True):
                self.interpreter.resize_tensor_input(detail["index"], array.shape)
            self.interpreter.allocate_tensors()
            self._shapes = [x.shape for x in arrays]
        for detail, array in zip(details, arrays, strict=True):
            self.interpreter.set_tensor(detail["index"], array.astype(detail["dtype"], copy=False))
        self.interpreter.invoke()
        return [
            self.interpreter.get_tensor(x["index"]) for x in self.interpreter.get_output_details()
        ]


def _check_count(path: Path, received: int, expected: int) -> None:
    if received != expected:
        raise ConfigError(f"{path.name} takes {expected} inputs, received {received}.")


def _like(array: Array, example: Any) -> Any:
    """Return an array as the kind of tensor that an example is."""
    if not hasattr(example, "detach"):
        return array
    import torch

    return torch.from_numpy(array)
