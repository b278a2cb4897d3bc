"""Find the integers and scales behind rounded weights, exactly.

A quantizer leaves ``w = scale * q`` with one scale for a tensor, a channel or a group. The scale of a row is
found from its smallest and its largest weight, and kept only if every product is the weight bit for bit.

>>> weights = np.float32(0.1) * np.array([[3.0, -1.0, 0.0]], np.float32)
>>> scales, integers = find_grid(weights)
>>> scales, integers
(array([0.1], dtype=float32), array([[ 3, -1,  0]], dtype=int32))
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

LARGEST = 1 << 15  # integers beyond are not a grid worth looking for
_DIVISORS = 16  # the smallest weight of a row may be this many steps
_ULPS = 3
_SAMPLE = 8  # rows that are looked at before all are


def find_grid(rows: Array) -> tuple[Array, Array] | None:
    """Return the scale of each row and the integers, None if rows are not multiples of anything.

    Parameters
    ----------
    rows : array
        Floating-point numbers of NumPy's own types, in two dimensions.
    """
    step = max(1, len(rows) // _SAMPLE)
    if len(rows) > _SAMPLE and _fit(rows[::step]) is None:
        return None
    return _fit(rows)


def products(scales: Array, integers: Array) -> Array:
    """Return the numbers that integers represent, in the precision of their scales."""
    return integers.astype(scales.dtype) * scales[:, None]


def _fit(rows: Array) -> tuple[Array, Array] | None:
    if not np.isfinite(rows).all():
        return None
    with np.errstate(all="ignore"):  # rows of zeros, and candidates that do not fit
        integers = _integers(np.abs(rows.astype(np.float64)))
        if integers is None:
            return None
        signed = np.where(np.signbit(rows), -integers, integers).astype(np.int32)
        scales = _scales(rows, signed)
    return None if scales is None else (scales, signed)


def _integers(sizes: Array) -> Array | None:
    """Return by how many steps each number is away from zero, with a step of its own for each row."""
    smallest = np.where(sizes > 0, sizes, np.inf).min(1)
    smallest = np.where(np.isfinite(smallest), smallest, 1.0)
    found = np.zeros(sizes.shape)
    is_open = np.ones(len(sizes), bool)
    for divisor in range(1, _DIVISORS + 1):
        steps = sizes[is_open] / (smallest[is_open] / divisor)[:, None]
        near = np.round(steps)
        fits = (np.abs(steps - near) < 1e-3).all(1) & (near < LARGEST).all(1)
        found[np.flatnonzero(is_open)[fits]] = near[fits]
        is_open[np.flatnonzero(is_open)[fits]] = False
        if not is_open.any():
            return found
    return None


def _scales(rows: Array, integers: Array) -> Array | None:
    """Return scales of which the multiples are exactly the rows."""
    places = np.abs(integers).argmax(1)
    each = np.arange(len(rows))
    top = np.abs(integers)[each, places]
    # A row of zeros takes the scale zero.
    first = np.where(top > 0, np.abs(rows[each, places]) / np.maximum(top, 1), 0.0)
    first = first.astype(rows.dtype)
    bits = rows.view(_unsigned(rows.dtype))
    found, is_open = first.copy(), np.ones(len(rows), bool)
    for ulps in sorted(range(-_ULPS, _ULPS + 1), key=abs):
        trial = first
        for _ in range(abs(ulps)):
            trial = np.nextafter(trial, np.array(np.inf if ulps > 0 else 0.0, rows.dtype))
        same = (products(trial, integers).view(bits.dtype) == bits).all(1) & is_open
        found[same] = trial[same]
        is_open &= ~same
        if not is_open.any():
            return found
    return None


def _unsigned(dtype: Any) -> Any:
    return np.dtype(f"u{np.dtype(dtype).itemsize}")
