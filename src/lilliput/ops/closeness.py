"""Measure how far two float arrays are apart, relative to their size.

Some models write a huge filler where an output is masked: -1e9 for a key that a query must not attend to,
or the lowest number of the dtype. Relative to it, any error of the other entries would look small, so they
are compared among themselves. If huge numbers were computed instead, small ones may be differences of them,
and the rounding errors of the huge ones are not counted as errors of the small ones.

>>> import numpy as np
>>> print(f"{relative_error(np.array([-1e9, 4.0]), np.array([-1e9, 5.0])):.2f}")
0.25
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# All are powers of two.
_GAP = 14  # orders of magnitude without an entry between fillers and the other entries
_HUGE = 13  # smallest order of magnitude of a filler
# In this range relative to a huge number, a small one may be its rounding error; below, it is not.
_ROUNDING = {"float64": (-66, -44)}
_ROUNDING_OTHERS = (-66, 0)
_ROUNDED = (2.0**-66, 2.0**-44)  # rounding errors of small numbers, relative to huge ones
_ALIKE = 0.99  # smallest ratio of two numbers that may be the same filler
_NONE = -2000  # of zero


def relative_error(expected: Array, received: Array) -> float:
    """Return the largest error, relative to the largest entry; inf if NaN or infinity differ.

    Entries that are smaller by orders of magnitude than huge ones are compared with the largest of their
    own, unless they may be rounding errors of the huge ones.

    Parameters
    ----------
    expected, received : numpy.ndarray
        Floating-point numbers of one shape. The type of the first one says how numbers are rounded.
    """
    finite = np.isfinite(expected)
    if not finite.all():
        others = expected[~finite], received[~finite]
        expected, received = expected[finite], received[finite]
        if not np.array_equal(*others, equal_nan=True):
            return float("inf")
    if not np.isfinite(received).all():
        return float("inf")
    if not expected.size:
        return 0.0
    sizes = np.abs(expected, dtype=np.float64)
    with np.errstate(over="ignore"):  # of the least number of a type and the largest
        errors = np.subtract(received, expected, dtype=np.float64)
        np.abs(errors, out=errors)
    if float(sizes.max()) < 2.0**_HUGE:
        return float(errors.max()) / (float(sizes.max()) or 1.0)
    return _by_magnitude(sizes, errors, _ROUNDING.get(str(expected.dtype), _ROUNDING_OTHERS))


def _by_magnitude(sizes: Array, errors: Array, rounding: tuple[int, int]) -> float:
    """Return the largest error, each relative to the largest entry that it is compared with."""
    orders = np.where(sizes > 0, np.frexp(sizes)[1], _NONE)
    worst = computed = 0.0
    for lowest, highest in _ranges(orders, rounding):
        here = (orders >= lowest) & (orders <= highest)
        largest, found = float(sizes[here].max()), errors[here]
        is_rounding = (found > _ROUNDED[0] * computed) & (found < _ROUNDED[1] * computed)
        worst = max(worst, float(np.where(is_rounding, 0.0, found).max()) / largest)
        if sizes[here].min() < _ALIKE * largest:  # these are not fillers
            computed = max(computed, largest)
    return worst


def _ranges(orders: Array, rounding: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the orders of magnitude of entries that are compared with each other, largest first."""
    least = int(orders.min())
    found = (np.flatnonzero(np.bincount(orders.ravel() - least)) + least)[::-1].tolist()
    first = last = found[0]
    for order in found[1:]:
        is_apart = last - order > _GAP and first > _HUGE and order != _NONE
        if is_apart and not rounding[0] < order - first < rounding[1]:
            yield last, first
            first = order
        last = order
    yield last, first
