"""Find the integers and scales behind rounded weights, exactly.

A quantizer produces ``w = scale * q`` with one scale for a tensor, a channel or a group. The scale of a
row is found from its largest weight, which is often the last step of the grid, or from its smallest
one, and kept only if every product equals the weight bit by bit. The smallest alone would not suffice:
pruning by magnitude removes weights that are only a few steps away from zero.

>>> weights = np.float32(0.1) * np.array([[3.0, -1.0, 0.0]], np.float32)
>>> scales, integers = find_grid(weights)
>>> scales, integers
(array([0.1], dtype=float32), array([[ 3, -1,  0]], dtype=int32))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any

LARGEST = 1 << 15  # larger integers are not worth a grid
_DIVISORS = 16  # the smallest weight of a row may be this many steps
_STEPS = 256  # and the largest this many
# Or the last step of a signed grid of up to 15 bits, with or without its lowest integer.
_LAST = sorted({(1 << bits) - less for bits in range(15) for less in (0, 1)} - {0})
_ULPS = 3
_SAMPLE = 8  # rows that are tested first
_COLUMNS = 64  # and columns


def find_grid(rows: Array) -> tuple[Array, Array] | None:
    """Return the scale of each row and the integers, or None if rows are not multiples of a scale.

    Parameters
    ----------
    rows : array
        A matrix of one of NumPy's floating-point types.
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
    sizes = np.abs(rows).astype(np.float64)
    largest = sizes.max(1, initial=0.0)
    smallest = np.where(sizes > 0, sizes, np.inf).min(1, initial=np.inf)
    none, every = largest == 0, np.arange(len(rows))
    largest[none], smallest[none] = 1.0, 1.0
    with np.errstate(all="ignore"):  # candidates that do not fit
        # A grid shared by all rows has consistent codes, even for rows with few weights.
        for last in _LAST:
            places, scales, integers = _multiples(rows, largest / last, every)
            if len(places) == len(rows):
                return scales, integers
        return _fit_each(rows, largest, smallest)


def _fit_each(rows: Array, largest: Array, smallest: Array) -> tuple[Array, Array] | None:
    """Return scales and integers, with as few steps as possible in each row."""
    found, scales = np.zeros(rows.shape, np.int32), np.zeros(len(rows), rows.dtype)
    is_open = np.ones(len(rows), bool)
    for step in _candidates(largest, smallest):
        places, some, integers = _multiples(rows, step, np.flatnonzero(is_open))
        found[places], scales[places] = integers, some
        is_open[places] = False
        if not is_open.any():
            return scales, found
    return None


def _candidates(largest: Array, smallest: Array) -> Iterator[Array]:
    """Yield candidates for the step of each row, the widest first."""
    for count in (*range(1, _STEPS + 1), *(last for last in _LAST if last > _STEPS)):
        yield largest / count
    for count in range(1, _DIVISORS + 1):
        yield smallest / count


def _multiples(rows: Array, step: Array, places: Array) -> tuple[Array, Array, Array]:
    """Return which of the selected rows are approximate multiples of a step, their scales and integers."""
    columns = slice(None, None, max(1, rows.shape[1] // _COLUMNS))
    places = places[_near(rows[places, columns], step[places])[0]]
    held = rows[places] if len(places) < len(rows) else rows
    fits, integers = _near(held, step[places])
    places, held, integers = places[fits], held[fits], integers[fits]
    signed = np.where(np.signbit(held), -integers, integers).astype(np.int32)
    fits, scales = _scales(held, signed)
    return places[fits], scales[fits], signed[fits]


def _near(rows: Array, step: Array) -> tuple[Array, Array]:
    """Return which rows are integer numbers of steps up to rounding, and these numbers."""
    steps = np.abs(rows).astype(np.float64) / step[:, None]
    whole = np.round(steps)
    # Both the weight and the one that the step was derived from are rounded, by half an ulp each.
    slack = 1.5 * float(np.finfo(rows.dtype).eps) * whole + 1e-9
    fits = (np.abs(steps - whole) < slack) & (slack < 0.5) & (whole < LARGEST)
    return fits.all(1), whole


def _scales(rows: Array, integers: Array) -> tuple[Array, Array]:
    """Return the rows that have a scale with exactly these multiples, and the scales."""
    places = np.abs(integers).argmax(1)
    each = np.arange(len(rows))
    top = np.abs(integers)[each, places]
    # A row of zeros has the scale zero.
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
            break
    return ~is_open, found


def _unsigned(dtype: Any) -> Any:
    return np.dtype(f"u{np.dtype(dtype).itemsize}")
