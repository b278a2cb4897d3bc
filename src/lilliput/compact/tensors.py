"""One tensor: choose the smallest of four forms, and restore it.

===== ==========================================================  =========================
form  for                                                         what is entropy coded
===== ==========================================================  =========================
raw   anything                                                    nothing; constant bits go
float floating-point numbers                                      exponents
table few different values: shared weights, flags                 which of them
grid  multiples of a scale per tensor, channel or group           the integers
===== ==========================================================  =========================

Each can have a mask of the zeros in addition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from lilliput.compact.ans import entropy
from lilliput.compact.fields import Planes
from lilliput.compact.grids import find_grid, products
from lilliput.errors import StateError

Array = Any

# Names of types, bytes of each, and how many leading bits are worth coding once the sign is at the
# end.
DTYPES = {
    "bool": (1, 0),
    **{f"{sign}int{8 * n}": (n, 0) for sign in ("", "u") for n in (1, 2, 4, 8)},
    "float8_e4m3fn": (1, 0),
    "float8_e5m2": (1, 0),
    "float16": (2, 8),
    "bfloat16": (2, 8),
    "float32": (4, 8),
    "float64": (8, 11),
    "complex64": (8, 0),
}
FORMS = ("raw", "float", "table", "grid")
GROUPS = {3: 32, 4: 64, 5: 128, 6: 256}  # neighbouring weights that share a scale
_MOST_VALUES = 1 << 12
_SAMPLE = 1 << 14


@dataclass(frozen=True)
class Stored:
    """A tensor as its bits.

    Parameters
    ----------
    dtype : str
        One of ``DTYPES``, which NumPy need not support.
    bits : array
        Unsigned integers of that size, in the shape of the tensor.
    """

    dtype: str
    bits: Array

    @classmethod
    def of(cls, array: Array) -> Stored:
        """Return an array of one of NumPy's types as bits."""
        whole = np.ascontiguousarray(array).reshape(np.shape(array))
        return cls(str(whole.dtype), whole.view(f"u{whole.dtype.itemsize}"))

    def array(self) -> Array:
        """Return it as an array, or its bits for types that NumPy does not support."""
        known = {"float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "bfloat16": "uint16"}
        return self.bits.view(known.get(self.dtype, self.dtype))


@dataclass(frozen=True)
class Form:
    """How a tensor is represented, without the codes themselves.

    Parameters
    ----------
    name : str
        One of ``FORMS``.
    count : int
        Number of codes; the first has the value ``low``.
    low : int
        The first exponent or integer.
    side : array
        The distinct values or the scales, as bits.
    group : int
        Which weights share a scale: 0 all, 1 a slice of the first axis, 2 one of the last, otherwise the
        number of consecutive weights in ``GROUPS``.
    signs : array
        -1, 0 or 1 for each code.
    """

    name: str
    count: int = 1
    low: int = 0
    side: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    group: int = 0
    signs: Array = field(default_factory=lambda: np.zeros(1, np.int8))


def check_type(name: str, stored: Stored) -> None:
    """Raise for a tensor of a type that cannot be read again."""
    if stored.dtype not in DTYPES:
        raise StateError(
            f"tensor {name!r} has the type {stored.dtype}, which weight files do not support; expected one "
            f"of {', '.join(DTYPES)}."
        )


def rotated(bits: Array) -> Array:
    """Return floating-point bits with the sign at the end, so that the exponent comes first."""
    one, top = bits.dtype.type(1), bits.dtype.type(8 * bits.dtype.itemsize - 1)
    return bits << one | bits >> top


def unrotated(bits: Array) -> Array:
    """Undo :func:`rotated`."""
    one, top = bits.dtype.type(1), bits.dtype.type(8 * bits.dtype.itemsize - 1)
    return bits >> one | bits << top


def choose_form(stored: Stored) -> tuple[Form, Array, bool]:
    """Return the form that takes the fewest bits, the codes, and whether zeros are masked."""
    bits = stored.bits
    if not Planes.of(bits.ravel()).varying:
        return Form("raw"), np.zeros(bits.shape, np.int64), False
    zeros = bits.size - int(np.count_nonzero(bits))
    is_sparse = zeros * 2 >= bits.size > zeros
    is_holed = zeros * 32 >= bits.size > zeros and bits.size >= 64
    raw = (Form("raw"), np.zeros(bits.shape, np.int64))
    options = [(raw, is_holed), (_floats(stored, is_holed), is_holed)]
    options += [(_table(stored, is_sparse), is_sparse), (_grid(stored, is_sparse), is_sparse)]
    found = [(one[0], one[1], has_mask) for one, has_mask in options if one is not None]
    return min(found, key=lambda one: _size(one[0], one[1], one[2], bits))


def restore(form: Form, codes: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return the bits of a tensor in one of the forms table and grid."""
    if form.name == "table":
        return form.side[codes]
    scales = form.side.view(dtype)
    rows = group_rows(codes + form.low, form.group)
    with np.errstate(all="ignore"):  # scales of an untrusted file may be anything
        reals = ungroup_rows(products(scales, rows), form.group, shape)
    # Codes of pruned weights are meaningless; the mask is applied by the caller.
    return np.ascontiguousarray(reals).view(f"u{DTYPES[dtype][0]}")


def group_rows(array: Array, group: int) -> Array:
    """Return a tensor as rows that share a scale."""
    if group == 0 or array.ndim < 2:
        return array.reshape(1, -1)
    if group == 1:
        return array.reshape(array.shape[0], -1)
    if group == 2:
        return array.reshape(-1, array.shape[-1]).T
    return array.reshape(-1, GROUPS[group])


def ungroup_rows(rows: Array, group: int, shape: tuple[int, ...]) -> Array:
    """Undo :func:`group_rows`."""
    return (rows.T if group == 2 and len(shape) > 1 else rows).reshape(shape)


def count_groups(group: int, shape: tuple[int, ...]) -> int:
    """Return the number of scales, 0 if a tensor cannot be grouped that way."""
    if group == 0:
        return 1
    if len(shape) < 2:
        return 0
    if group < 3:
        return shape[0 if group == 1 else -1]
    size = GROUPS.get(group, 0)
    return prod(shape) // size if size and shape[-1] % size == 0 else 0


def _table(stored: Stored, is_sparse: bool) -> tuple[Form, Array] | None:
    values = stored.bits[stored.bits != 0] if is_sparse else stored.bits.ravel()
    sample = values[:: max(1, len(values) // _SAMPLE)]
    if len(values) < 2 or len(np.unique(sample)) > min(_MOST_VALUES, len(sample) // 2 + 1):
        return None
    held, inverse = np.unique(values, return_inverse=True)
    if len(held) > _MOST_VALUES:
        return None
    codes = np.zeros(stored.bits.shape, np.int64)
    codes[stored.bits != 0 if is_sparse else ...] = (
        inverse if is_sparse else inverse.reshape(stored.bits.shape)
    )
    return Form("table", len(held), 0, held, 0, signs_of(held, stored.dtype)), codes


def signs_of(values: Array, dtype: str) -> Array:
    """Return -1, 0 or 1 for each value, given as bits."""
    is_negative = values >> values.dtype.type(8 * values.dtype.itemsize - 1) != 0
    has_sign = not dtype.startswith(("u", "bool", "complex"))
    return np.where(is_negative & has_sign, -1, values != 0).astype(np.int8)


def grid_signs(low: int, count: int) -> Array:
    """Return the sign of each integer of a grid."""
    return np.sign(np.arange(low, low + count)).astype(np.int8)


def _grid(stored: Stored, is_sparse: bool) -> tuple[Form, Array] | None:
    """Return the tensor as integers and scales, with the coarsest groups that suffice."""
    if stored.dtype not in ("float16", "float32", "float64") or stored.bits.size < 2:
        return None
    values = stored.array()
    for group in (0, 1, 2, *GROUPS):
        if not count_groups(group, stored.bits.shape):
            continue
        found = find_grid(np.ascontiguousarray(group_rows(values, group)))
        if found is None:
            continue
        scales, rows = found
        integers = ungroup_rows(rows, group, stored.bits.shape).astype(np.int64)
        held = integers[stored.bits != 0] if is_sparse else integers
        low, high = int(held.min()), int(held.max())
        if high - low < _MOST_VALUES * 4:
            count = high - low + 1
            side = scales.view(stored.bits.dtype)
            form = Form("grid", count, low, side, group, grid_signs(low, count))
            return form, np.clip(integers - low, 0, count - 1)
    return None


def _floats(stored: Stored, is_holed: bool) -> tuple[Form, Array] | None:
    width = DTYPES[stored.dtype][1]
    if not width or not stored.bits.size:
        return None
    shift = 8 * stored.bits.dtype.itemsize - width
    tops = (rotated(stored.bits) >> stored.bits.dtype.type(shift)).astype(np.int64)
    held = tops[stored.bits != 0] if is_holed else tops
    low, high = int(held.min()), int(held.max())
    form = Form("float", high - low + 1, low, signs=np.zeros(high - low + 1, np.int8))
    return form, np.clip(tops - low, 0, high - low)


def _size(form: Form, codes: Array, has_mask: bool, bits: Array) -> float:
    """Return approximately how many bits a form takes."""
    is_held = bits != 0 if has_mask else np.ones(bits.shape, bool)
    held = codes[is_held]
    size = entropy(np.array([held.size, bits.size - held.size]))
    if form.count > 1:
        counts = np.bincount(held, minlength=form.count)
        # Learning a distribution costs about half a logarithm for each code in use.
        size += entropy(counts) + 0.5 * np.count_nonzero(counts) * np.log2(held.size + 1)
    size += form.side.size * len(Planes.of(form.side).varying) + (32 if form.side.size else 0)
    return float(size + held.size * len(Planes.of(plain_bits(form, bits[is_held])).varying))


def plain_bits(form: Form, values: Array) -> Array:
    """Return the part of values that codes do not contain."""
    if form.name == "raw":
        return values
    return low_bits(values) if form.name == "float" else np.zeros(0, values.dtype)


def low_bits(values: Array) -> Array:
    """Return the bits below the exponent, with the sign at the end."""
    width = 11 if values.dtype.itemsize == 8 else 8
    mask = (1 << 8 * values.dtype.itemsize - width) - 1
    return rotated(values) & values.dtype.type(mask)
