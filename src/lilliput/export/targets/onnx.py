"""ONNX files: written from both frameworks, executed by ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lilliput.errors import MissingExtraError, StateError
from lilliput.export.targets.executed import Array, ExecutedFile, TensorInfo, list_ends
from lilliput.export.targets.target import Package, Target, Writer

_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class OnnxFile(ExecutedFile):
    """An ONNX file in ONNX Runtime."""

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads)
        from lilliput.export.run import open_session

        try:
            self.session = open_session(path, threads=threads)
        except MissingExtraError:
            raise
        except Exception as error:  # its exceptions have no common public base
            raise StateError(f"{path}: ONNX Runtime cannot read the file ({error}).") from error
        self.names = [x.name for x in self.session.get_inputs()]
        self.runtime = f"ONNX Runtime {version('onnxruntime')}"

    @property
    def bytes(self) -> int:
        """The size of the file and its external weights."""
        from lilliput.export.packed import external_files

        return sum(x.stat().st_size for x in (self.path, *external_files(self.path)))

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs."""
        feeds = dict(zip(self.order(len(arrays), names), arrays, strict=True))
        outputs: list[Array] = self.session.run(None, feeds)
        return outputs

    def tensors(self) -> list[TensorInfo]:
        """Return the inputs and outputs."""
        return list_ends(self.session.get_inputs(), self.session.get_outputs(), _describe)

    def operations(self) -> dict[str, int]:
        """Return how often each operation occurs."""
        try:
            import onnx_ir
        except ImportError:
            return {}
        counts = Counter(node.op_type for node in onnx_ir.load(self.path).graph)
        return dict(counts.most_common())

    def counts(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> dict[str, Any]:
        """Return parameters, nonzeros and macs."""
        from lilliput.export.onnx_counts import count_onnx

        return count_onnx(self, arrays, names)


def _describe(end: Any) -> tuple[str, tuple[int | None, ...], str]:
    sizes = tuple(size if isinstance(size, int) else None for size in end.shape)
    return end.name, sizes, _TYPES.get(end.type, end.type)


class Onnx(Target):
    """ONNX with QuantizeLinear and DequantizeLinear; ``target=`` of the writer chooses the runtime."""

    name, title, suffix, runtime = "onnx", "ONNX", ".onnx", "onnxruntime"
    file = OnnxFile
    writers = (
        Writer(
            "torch",
            "lilliput.export.onnx_file:export_onnx",
            ("onnx", "onnx_ir", "onnxscript", "onnxruntime"),
            "onnx",
        ),
        Writer(
            "keras",
            "lilliput.export.keras.onnx_file:export_onnx",
            ("tensorflow", "tf2onnx", "onnx", "onnx_ir", "onnxruntime"),
            "litert,onnx",
        ),
    )
    packages = (
        Package("onnx", "ONNX files", "onnx"),
        Package("onnx-ir", "ONNX files", "onnx", "onnx_ir"),
        Package("onnxscript", "ONNX files of torch models", "onnx"),
        Package("onnxruntime", "executing ONNX files", "onnx"),
        Package("tf2onnx", "ONNX files of Keras models", "litert"),
    )
    options = (
        *("target", "dynamic_batch", "dynamic_shapes"),
        *("opset", "check", "min_sqnr", "assume_vnni"),
    )
