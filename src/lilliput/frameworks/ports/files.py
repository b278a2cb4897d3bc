"""The framework interface of the engine: other processes, and files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlainFiles:
    """The files that ``export_model`` writes, and the input for tracing an ONNX file."""

    model_path: Any
    mask_path: Any = None
    onnx_path: Any = None
    input_shape: tuple[int, ...] | None = None
    device: Any = None


def is_bias_name(name: str) -> bool:
    """Whether an attribute has the name of a bias.

    Examples
    --------
    >>> [is_bias_name(name) for name in ("bias", "bias_ih_l0", "in_proj_bias", "unbiased")]
    [True, True, True, False]
    """
    words = name.split("_")
    return "bias" in (words[0], words[-1])


class Processes(ABC):
    """Synchronize with other processes that train the same model."""

    def processes(self) -> int:
        """Return the number of processes."""
        return 1

    @abstractmethod
    def process_index(self) -> int:
        """Return the index of this process, 0 if it is the only one."""

    @abstractmethod
    def sum_over_processes(self, tensor: Any) -> Any:
        """Return the sum of a tensor over all training processes."""

    @abstractmethod
    def average(self, tensors: Sequence[Any]) -> bool:
        """Average tensors in place over all training processes; False if there is only one."""

    @abstractmethod
    def reduce(self, array: Any, how: str) -> Any:
        """Return the 'min', 'max' or 'sum' of a NumPy array over all processes."""

    def watch_join(self, model: Any) -> list[Any]:
        """Track whether processes may make different numbers of steps; return removable handles."""
        return []

    def is_joining(self, model: Any) -> bool:
        """Whether other processes may have stopped training, so that waiting for them could block."""
        return False


class Storing(ABC):
    """Turn models and tensors into files, and back."""

    @abstractmethod
    def copy_model(self, model: Any) -> Any:
        """Return a copy of a model with the same names and values that shares nothing with it."""

    @abstractmethod
    def model_tensors(self, model: Any) -> dict[str, Any]:
        """Return every tensor of a model by a stable name."""

    @abstractmethod
    def load_model(self, model: Any, tensors: dict[str, Any]) -> None:
        """Load tensors of :meth:`model_tensors` into a model."""

    @abstractmethod
    def export(self, model: Any, wrappers: Sequence[Any], files: PlainFiles) -> None:
        """Write the compressed model as a plain one."""

    @abstractmethod
    def dump_tensors(self, tensors: dict[str, Any]) -> bytes:
        """Return tensors as the bytes of a safetensors file."""

    @abstractmethod
    def parse_tensors(self, data: bytes) -> dict[str, Any]:
        """Return the tensors of a safetensors file."""

    @abstractmethod
    def stored_types(self, model: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return type and shape of every tensor in a file of a plain model's weights, by name."""

    @abstractmethod
    def stored(self, model: Any) -> dict[str, tuple[str, Any]]:
        """Return these tensors, with masks and weight rounding: type, and bits as unsigned integers."""

    @abstractmethod
    def stored_biases(self, model: Any) -> set[str]:
        """Return the names of these tensors that are biases of layers; never a user's matrix."""

    @abstractmethod
    def load_stored(self, model: Any, tensors: dict[str, tuple[str, Any]]) -> None:
        """Load such tensors into a plain model; names, types and shapes have been validated."""
