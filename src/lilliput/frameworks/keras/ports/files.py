"""Keras for the engine: other processes, and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lilliput.errors import StageError, StateError
from lilliput.frameworks.keras import copies, files
from lilliput.frameworks.keras import model as models
from lilliput.frameworks.keras.files import export_plain
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.variables import to_array
from lilliput.frameworks.ports.files import PlainFiles, Processes, Storing


class KerasProcesses(Processes):
    """Synchronize with other processes that train the same model."""

    def sum_over_processes(self, tensor: Any) -> Any:
        """Return the tensor: there is a single process."""
        return tensor

    def process_index(self) -> int:
        """Return 0."""
        return 0

    def average(self, tensors: Sequence[Any]) -> bool:
        """Return False: there is a single process."""
        return False

    def reduce(self, array: Any, how: str) -> Any:
        """Return the array: there is a single process."""
        return array


class KerasStoring(Storing):
    """Turn models and tensors into files, and back."""

    def model_tensors(self, model: Any) -> dict[str, Any]:
        """Return the variables, numbered in the order of the model."""
        sync(model)
        return {f"{i}": to_array(variable) for i, variable in enumerate(model.variables)}

    def load_model(self, model: Any, tensors: dict[str, Any]) -> None:
        """Assign the variables again."""
        sync(model)
        for i, variable in enumerate(model.variables):
            variable.assign(tensors[f"{i}"])

    def copy_model(self, model: Any) -> Any:
        """Recreate the model from its config with the same values; fails if a compressor is attached."""
        at_work = models.compressors_of(model)
        if at_work:
            raise StageError(
                f"the model is under {type(at_work[0]).__name__} and cannot be copied with it; strip() it "
                "first, or pass a model without compressors."
            )
        return copies.copy_model(model)

    def export(self, model: Any, wrappers: Sequence[Any], files: PlainFiles) -> None:
        """Write the compressed model as a plain one; see :mod:`files`."""
        export_plain(model, wrappers, files)

    def dump_tensors(self, tensors: dict[str, Any]) -> bytes:
        """Return tensors as the bytes of a safetensors file."""
        return files.dump_tensors(tensors)

    def parse_tensors(self, data: bytes) -> dict[str, Any]:
        """Return the tensors of a safetensors file, as NumPy arrays."""
        return files.parse_tensors(data)

    def stored_types(self, model: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the weights by their paths; raise if a compressor is attached."""
        if models.compressors_of(model):
            raise StateError(
                "a compressor is attached to the model; call its strip() before loading."
            )
        found = files.plain_weights(model)
        return {name: (str(v.dtype), tuple(v.shape)) for name, v in found.items()}

    def stored(self, model: Any) -> dict[str, tuple[str, Any]]:
        """Return the weights of the plain model; see :mod:`files`."""
        sync(model)
        wrappers = [w for c in models.compressors_of(model) for w in c._every_wrapper()]
        return files.stored_weights(model, wrappers)

    def stored_biases(self, model: Any) -> set[str]:
        """Return the biases of Keras' layers, and variables of one dimension with such a name."""
        return files.find_biases(model)

    def load_stored(self, model: Any, tensors: dict[str, tuple[str, Any]]) -> None:
        """Assign the weights."""
        sync(model)
        for name, variable in files.plain_weights(model).items():
            variable.assign(files.from_bits(*tensors[name]))
