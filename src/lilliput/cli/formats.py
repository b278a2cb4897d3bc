"""The formats in which ``lilliput benchmark`` measures a model, and how each is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lilliput.errors import ConfigError, nearest

FORMATS = {
    "torch": ("torch", "onnx", "onnx-int8"),
    "keras": ("keras", "litert", "litert-int8", "onnx", "onnx-int8"),
}


def choose_formats(asked: Sequence[str], framework: str) -> list[str]:
    """Return the formats to measure, all of a framework by default.

    Examples
    --------
    >>> choose_formats(["torch,onnx"], "torch")
    ['torch', 'onnx']
    """
    known = FORMATS.get(framework) or tuple(
        dict.fromkeys(name for names in FORMATS.values() for name in names)
    )
    asked = [name.strip() for text in asked for name in text.split(",")]
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"--format: received {name!r}, expected one of {', '.join(known)}."
                f"{nearest(name, known)}"
            )
    return list(dict.fromkeys(asked)) or list(known)


@dataclass(frozen=True)
class Writer:
    """Writes one model in several formats."""

    model: Any
    framework: str
    folder: Path
    inputs: Any
    batches: list[Any]

    def make(self, name: str) -> Any:
        """Return the model itself, or the path of the file it was written to."""
        if name == self.framework:
            return self.model
        kind, _, is_quantized = name.partition("-")
        path = self.folder / f"{name}{'.onnx' if kind == 'onnx' else '.tflite'}"
        if not is_quantized:
            self._export(self.model, kind, path)
            return path
        from lilliput.quantization.ptq import PTQQuantizer

        quantizer = PTQQuantizer(self.model, [{"op_types": ["default"]}])
        try:
            quantizer.compress()
            quantizer.calibrate(self.batches or [self.inputs])
            self._export(quantizer, kind, path)
        finally:
            quantizer.strip()
        return path

    def _export(self, source: Any, kind: str, path: Path) -> None:
        module = "lilliput.export" if self.framework == "torch" else "lilliput.export.keras"
        exporters = import_module(module)
        write = exporters.export_onnx if kind == "onnx" else exporters.export_litert
        write(source, path, self.inputs)
