"""The formats in which ``lilliput benchmark`` measures a model, and how each is created."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.errors import ConfigError, nearest
from lilliput.export.targets.table import target_named, targets_of

_FRAMEWORKS = ("torch", "keras")


def formats_of(framework: str) -> list[str]:
    """Return the model itself, and each target in float and in integers.

    Examples
    --------
    >>> formats_of("keras")
    ['keras', 'onnx', 'onnx-int8', 'litert', 'litert-int8']
    """
    names = [target.name for target in targets_of(framework)]
    return [framework, *(form for name in names for form in (name, f"{name}-int8"))]


def all_formats() -> list[str]:
    """Return the formats of all frameworks."""
    return list(dict.fromkeys(form for name in _FRAMEWORKS for form in formats_of(name)))


def choose_formats(asked: Sequence[str], framework: str) -> list[str]:
    """Return the formats to measure, all of a framework by default.

    Examples
    --------
    >>> choose_formats(["torch,onnx"], "torch")
    ['torch', 'onnx']
    """
    known = formats_of(framework) if framework in _FRAMEWORKS else all_formats()
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
        """Return the model itself, or the path of the written file."""
        if name == self.framework:
            return self.model
        kind, _, is_quantized = name.partition("-")
        target = target_named(kind)
        write, path = target.writer(self.framework).load(), self.folder / f"{name}{target.suffix}"
        if not is_quantized:
            write(self.model, path, self.inputs)
            return path
        from lilliput.quantization.ptq import PTQQuantizer

        wanted = {"quant_types": list(target.quant_types)} if target.quant_types else {}
        quantizer = PTQQuantizer(self.model, [{"op_types": ["default"], **wanted}])
        try:
            quantizer.compress()
            quantizer.calibrate(self.batches or [self.inputs])
            write(quantizer, path, self.inputs)
        finally:
            quantizer.strip()
        return path
