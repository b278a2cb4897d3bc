"""Check the arguments of export functions, and write their files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lilliput.errors import ExportError
from lilliput.files import write_atomically

_OPSETS = range(21, 24)


@dataclass(frozen=True)
class OnnxSettings:
    """What was asked of an ONNX file, as in the arguments of ``export_onnx``."""

    target: str
    dynamic_batch: bool
    check: bool
    min_sqnr: float
    assume_vnni: bool | None
    opset: int = 21
    dynamic_shapes: Any = True

    @property
    def wanted_sqnr(self) -> float | None:
        """The least agreement at which the file is written; None: it is not executed."""
        return self.min_sqnr if self.check else None

    def for_float(self) -> OnnxSettings:
        """Return the settings of the float file that the file is compared with."""
        return replace(self, check=False)


def check_options(min_sqnr: Any, calibration: Any) -> None:
    """Raise if an argument has the wrong type."""
    if isinstance(min_sqnr, bool) or not isinstance(min_sqnr, (int, float)):
        raise ExportError(f"min_sqnr: received {min_sqnr!r}, expected a number of dB.")
    if calibration is not None and not isinstance(calibration, Iterable):
        raise ExportError(f"calibration: received {calibration!r}, expected a list of inputs.")


def check_onnx(target: str, opset: Any) -> None:
    """Raise if there is no such runtime, or the opset version is not supported."""
    from lilliput.export.passes.fit import check_target

    check_target(target)
    if opset not in _OPSETS:
        raise ExportError(f"opset: received {opset!r}, expected {_OPSETS[0]} to {_OPSETS[-1]}.")


def checked_path(path: Any, suffix: str) -> Path:
    """Return a writable path for the file, or raise."""
    try:
        place = Path(path)
    except TypeError:
        raise ExportError(f"path: received {path!r}, expected a string.") from None
    if place.suffix != suffix:
        raise ExportError(f"{place}: expected a name ending in {suffix}.")
    if not place.parent.is_dir() or place.is_dir():
        what = "is a folder" if place.is_dir() else "is in a folder that does not exist"
        raise ExportError(f"{place}: it {what}; pass the path of a file.")
    return place


def write_file(place: Path, data: bytes) -> None:
    """Write a file atomically, or raise an error with the reason."""
    try:
        write_atomically(place, data)
    except OSError as error:
        raise ExportError(f"{place}: it cannot be written: {error}") from error
