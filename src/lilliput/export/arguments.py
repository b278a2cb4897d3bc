"""Arguments that every export function has: checked before any work is done."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lilliput.errors import ExportError


def check_options(min_sqnr: Any, calibration: Any) -> None:
    """Raise if an argument is of the wrong kind."""
    if isinstance(min_sqnr, bool) or not isinstance(min_sqnr, (int, float)):
        raise ExportError(f"min_sqnr: received {min_sqnr!r}, expected a number of dB.")
    if calibration is not None and not isinstance(calibration, Iterable):
        raise ExportError(f"calibration: received {calibration!r}, expected a list of inputs.")


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


def model_under(quantizer_or_model: Any) -> Any:
    """Return the model that a compressor is at work on; anything else is returned as it is."""
    model = getattr(quantizer_or_model, "bound_model", quantizer_or_model)
    if model is not quantizer_or_model and not getattr(quantizer_or_model, "is_wrapped", False):
        raise ExportError(
            f"{type(quantizer_or_model).__name__} is not at work on a model; call compress() before "
            "exporting, or give the model itself to export it without compression."
        )
    return model
