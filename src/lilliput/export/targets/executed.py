"""An exported file that is called like its model, so that one evaluation function works for both.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.errors import ConfigError, LilliputError
from lilliput.frameworks import backend_named
from lilliput.frameworks.work import default_threads

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
else:  # "lilliput doctor" reads the targets without NumPy
    Array = Any


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a file: ``kind`` is input or output, None in the shape is a dynamic size."""

    kind: str
    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; dynamic sizes are question marks."""
        shape = ["?" if size is None else size for size in self.shape]
        return {"kind": self.kind, "name": self.name, "shape": shape, "dtype": self.dtype}


def list_ends(
    inputs: Iterable[Any],
    outputs: Iterable[Any],
    describe: Callable[[Any], tuple[str, tuple[int | None, ...], str]],
) -> list[TensorInfo]:
    """Return the inputs and outputs of a file; ``describe`` tells the name, shape and type of each."""
    ends = [*(("input", x) for x in inputs), *(("output", x) for x in outputs)]
    return [TensorInfo(kind, *describe(x)) for kind, x in ends]


def open_file(path: str | os.PathLike[str], threads: int | None = None) -> ExecutedFile:
    """Open an exported file (``.onnx``, ``.tflite``, ``.xml`` or ``.pte``) in its runtime, to call it.

    Parameters
    ----------
    path : str or path-like
        The file.
    threads : int, optional
        The number of threads; by default that of torch, or one per processor.
    """
    from lilliput.export.targets.table import target_for

    place = Path(path)
    target = target_for(place)
    if not place.is_file():
        raise ConfigError(f"{place}: there is no such file.")
    return target.open(place, threads or default_threads())


class ExecutedFile:
    """A file in its runtime. Call it with torch tensors or NumPy arrays; it returns the same kind.

    ``eval``, ``train`` and ``to`` do nothing, and ``predict`` runs in batches, so that functions
    written for a torch or Keras model work unchanged.
    """

    runtime = ""
    training = False
    casts = False  # whether inputs of other types are converted
    names: Sequence[str] = ()  # of the inputs

    def __init__(self, path: Path, threads: int) -> None:
        self.path, self.threads = path, threads

    @property
    def bytes(self) -> int:
        """The size of the file, including external weights of an ONNX file."""
        return self.path.stat().st_size

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs for inputs in the order of the file, or by name."""
        raise NotImplementedError

    def tensors(self) -> list[TensorInfo]:
        """Return the inputs and outputs of the file."""
        raise NotImplementedError

    def operations(self) -> dict[str, int]:
        """Return how often each operation occurs; empty if unknown."""
        return {}

    def counts(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> dict[str, Any]:
        """Return parameters, nonzeros and macs for such inputs; empty if unknown."""
        return {}

    def __call__(self, *inputs: Any, training: bool = False, **named: Any) -> Any:
        """Return the outputs, one or a tuple of them."""
        if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
            inputs = tuple(inputs[0])
        from lilliput.frameworks.exporting.simulation import to_array

        values = [*inputs, *named.values()]
        if not values:
            raise ConfigError(f"{self.path.name}: called without inputs.")
        arrays = [to_array(x) for x in values]
        try:
            found = self.run(arrays, list(named))
        except LilliputError:
            raise
        except Exception as error:  # the runtimes have no class of errors in common
            self.check_inputs(arrays, list(named), why=error)
            raise
        outputs = [_like(x, values[0]) for x in found]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def predict(self, x: Any, batch_size: int = 32, verbose: Any = 0) -> Any:
        """Return the outputs for all rows of ``x``, as ``predict`` of a Keras model does."""
        import numpy as np

        inputs = list(x) if isinstance(x, (tuple, list)) else [x]
        starts = range(0, len(inputs[0]), batch_size)
        parts = [self(*(np.asarray(i[s : s + batch_size]) for i in inputs)) for s in starts]
        if isinstance(parts[0], tuple):
            return [np.concatenate(column) for column in zip(*parts, strict=True)]
        return np.concatenate(parts)

    def order(self, count: int, named: Sequence[str]) -> list[str]:
        """Return the names of the inputs in the order in which arrays are given, the named ones last."""
        if count != len(self.names):
            raise ConfigError(f"{self.path.name} takes {len(self.names)} inputs, received {count}.")
        if not set(named) <= set(self.names):
            raise ConfigError(f"{self.path.name} takes {self.names}, received {list(named)}.")
        return [*(name for name in self.names if name not in named), *named]

    def check_inputs(
        self,
        arrays: Sequence[Array],
        named: Sequence[str] = (),
        any_batch: bool = False,
        why: Exception | None = None,
    ) -> None:
        """Raise for the first input whose shape, or else whose type, is not what the file takes."""
        start = int(any_batch)
        inputs = {x.name: x for x in self.tensors() if x.kind == "input"}
        given = dict(zip(self.order(len(arrays), named), arrays, strict=True))
        wrong = [
            name
            for name, array in given.items()
            if not _fits(array.shape[start:], inputs[name].shape[start:])
        ]
        if not self.casts:
            wrong += [name for name in given if given[name].dtype.name != inputs[name].dtype]
        if wrong:
            found, wanted = given[wrong[0]], inputs[wrong[0]]
            shape = ", ".join(map(str, wanted.to_dict()["shape"]))
            raise ConfigError(
                f"{self.path.name}: input {wrong[0]!r} is {found.dtype.name} of shape "
                f"{list(found.shape)}, expected {wanted.dtype} of shape [{shape}]."
            ) from why

    def eval(self) -> ExecutedFile:
        """Return itself: a file has no training mode."""
        return self

    def train(self, mode: bool = True) -> ExecutedFile:
        """Return itself: a file cannot be trained."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> ExecutedFile:
        """Return itself: a file cannot be moved."""
        return self


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size in (None, given) for given, size in zip(shape, wanted, strict=True)
    )


def _like(array: Array, example: Any) -> Any:
    """Return an array as the same kind of tensor as an example."""
    if not hasattr(example, "detach"):
        return array
    return backend_named("torch").from_array(array)
