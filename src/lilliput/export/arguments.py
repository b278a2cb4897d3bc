"""What every export function begins and ends with: its arguments are checked, its file is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lilliput.errors import ExportError
from lilliput.files import write_atomically

_OPSETS = range(21, 24)


def check_options(min_sqnr: Any, calibration: Any) -> None:
    """Raise if an argument is of the wrong kind."""
    if isinstance(min_sqnr, bool) or not isinstance(min_sqnr, (int, float)):
        raise ExportError(f"min_sqnr: received {min_sqnr!r}, expected a number of dB.")
    if calibration is not None and not isinstance(calibration, Iterable):
        raise ExportError(f"calibration: received {calibration!r}, expected a list of inputs.")


def check_onnx(target: str, opset: Any) -> None:
    """Raise if there is no such runtime, or its files have no such version of ONNX's operators."""
    from lilliput.export.passes.fit import check_target

    check_target(target)
    if opset not in _OPSETS:
        raise ExportError(f"opset: received {opset!r}, expected {_OPSETS[0]} to {_OPSETS[-1]}.")


def checked_path(path: Any, suffix: str) -> Path:
    """Return a path to which a file can be written, or raise."""
    try:
        place = Path(path)
    except TypeError:
        raise ExportError(f"path: received {path!r}, expected a string.") from None
    if place.suffix != suffix:
        raise ExportError(f"{place}: expected a name ending in {suffix}.")
    if not place.parent.is_dir() or place.is_dir():
        what = "is a folder" if place.is_dir() else "lies in a folder that does not exist"
        raise ExportError(f"{place}: it {what}; give the path of a file.")
    return place


def write_file(place: Path, data: bytes) -> None:
    """Write a file in one step, or say why that cannot be done."""
    try:
        write_atomically(place, data)
    except OSError as error:
        raise ExportError(f"{place}: it cannot be written: {error}") from error
