"""The header entry of each tensor in a compact file, and how tensors are read and written with it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lilliput.compact.ans import Port, damaged
from lilliput.compact.fields import Bytes, Planes, Source
from lilliput.compact.layouts import Layout, Links, View, choose_layout
from lilliput.compact.rows import STRENGTHS, Settings, code_matrix
from lilliput.compact.tensors import (
    DTYPES,
    FORMS,
    Form,
    Stored,
    check_type,
    choose_form,
    count_groups,
    grid_signs,
    plain_bits,
    restore,
    signs_of,
    unrotated,
)

Array = Any

_NAMES = tuple(DTYPES)
_ON_GRIDS = ("float16", "float32", "float64")
_MOST_AXES = 32
_LARGEST = (1 << 48) - 1
_MOST_CODES = 1 << 16


@dataclass(frozen=True)
class Entry:
    """A tensor without its values.

    Parameters
    ----------
    name, dtype, shape
        Its name, type and shape.
    form, layout : Form, Layout
        How it is written; tables and scales are missing until they have been read.
    held : int
        How many values are in the file: all, or the nonzero ones.
    plain, side : Planes
        The bits of values, and of the table or scales, that are stored verbatim.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    form: Form
    layout: Layout
    held: int
    plain: Planes
    side: Planes

    @property
    def size(self) -> int:
        """Its size in memory in bytes."""
        return prod(self.shape) * DTYPES[self.dtype][0]

    @property
    def steps(self) -> int:
        """The number of rows that have to be read sequentially."""
        is_coded = self.size > 0 and (self.layout.has_mask or self.form.count > 1)
        return self.layout.view.shape(self.shape)[0] if is_coded else 0

    def write(self, out: Bytes) -> None:
        """Write it."""
        out.text(self.name)
        out.number(_NAMES.index(self.dtype))
        out.number(len(self.shape))
        for length in self.shape:
            out.number(length)
        view, settings = self.layout.view, self.layout.settings
        flags = [self.layout.has_mask, view.by_last, view.is_turned]
        flags += [settings.has_rows, settings.has_signs]
        flags += [self.layout.link == 1, self.layout.link == 2]
        out.number(FORMS.index(self.form.name) + sum(x << i + 2 for i, x in enumerate(flags)))
        if self.layout.has_mask:
            out.number(self.held)
            out.number(settings.strength)
        if self.layout.has_mask or settings.has_signs:
            out.number(settings.stride)
        if self.form.name in ("raw", "float"):
            self.plain.write(out)
        else:
            self.side.write(out)
        if self.form.name == "grid":
            out.number(self.form.group)
        if self.form.name != "raw":
            out.number(self.form.count - 1)
            low = self.form.low
            out.number(2 * low if low >= 0 else -2 * low - 1)

    @classmethod
    def read(cls, source: Source) -> Entry:
        """Read it; raise for impossible values."""
        name, dtype = source.text(), _NAMES[source.number(len(_NAMES) - 1)]
        shape = tuple(source.number(_LARGEST) for _ in range(source.number(_MOST_AXES)))
        total, width = prod(shape), 8 * DTYPES[dtype][0]
        if total > _LARGEST:
            raise damaged(f"tensor {name!r} has the shape {shape}")
        flags = source.number(511)
        form_name, flag = FORMS[flags & 3], [bool(flags >> i + 2 & 1) for i in range(7)]
        held = source.number(total) if flag[0] else total
        strength = source.number(len(STRENGTHS) - 1) if flag[0] else Settings.strength
        stride = source.number(_LARGEST) if flag[0] or flag[4] else 0
        if stride == 1:  # the row before is a neighbour anyway
            raise damaged(f"tensor {name!r} has lines of one row")
        link = 1 if flag[5] else 2 if flag[6] else 0
        layout = Layout(
            View(flag[1], flag[2]), Settings(strength, stride, flag[3], flag[4]), flag[0], link
        )
        planes = Planes.read(source, width)
        form = _read_form(form_name, dtype, shape, source)
        is_plain = form_name in ("raw", "float")
        plain, side = (planes, Planes()) if is_plain else (Planes(), planes)
        return cls(name, dtype, shape, form, layout, held, plain, side)


def _read_form(name: str, dtype: str, shape: tuple[int, ...], source: Source) -> Form:
    group = source.number(16) if name == "grid" else 0
    if name == "raw":
        return Form(name)
    count, folded = source.number(_MOST_CODES) + 1, source.number(_MOST_CODES)
    low = -(folded + 1) // 2 if folded & 1 else folded // 2
    is_on_grid = dtype in _ON_GRIDS and shape and count_groups(group, shape)
    if name == "grid" and not is_on_grid:
        raise damaged(f"a tensor of type {dtype} and shape {shape} is on a grid")
    if name == "table" and not shape:
        raise damaged(f"a tensor of type {dtype} and shape {shape} is in a table")
    width = DTYPES[dtype][1]
    if name == "float" and not (width and low >= 0 and low + count <= 1 << width):
        raise damaged(f"a tensor of type {dtype} has the exponents {low} to {low + count - 1}")
    return Form(name, count, low, group=group)


def write_tensor(
    name: str, stored: Stored, head: Bytes, port: Port, plain: bytearray, links: Links
) -> None:
    """Write a tensor in the form that takes the fewest bytes."""
    check_type(name, stored)
    bits = stored.bits
    form, codes, has_mask = choose_form(stored)
    layout = choose_layout(form, codes, bits, has_mask, links)
    values = (bits[bits != 0] if has_mask else bits).ravel()
    rest = plain_bits(form, values)
    planes, side = Planes.of(rest), Planes.of(form.side)
    entry = Entry(name, stored.dtype, bits.shape, form, layout, values.size, planes, side)
    entry.write(head)
    plain += side.pack(form.side) + planes.pack(rest)
    matrix = layout.view.matrix(np.where(bits == 0, -1, codes) if has_mask else codes)
    count = values.size if has_mask else None
    hints = _hints(layout, links, bits.shape)
    code_matrix(port, layout.settings, matrix.shape, form.signs, count, matrix, hints)
    links.take(bits)


def read_tensor(entry: Entry, port: Port, plain: Source, links: Links) -> Stored:
    """Read a tensor whose header has been read."""
    form = _with_side(entry, plain)
    kind = f"u{DTYPES[entry.dtype][0]}"
    is_plain = form.name in ("raw", "float")
    values = entry.plain.unpack(plain, entry.held, kind) if is_plain else np.zeros(0, kind)
    shape = entry.layout.view.shape(entry.shape)
    count = entry.held if entry.layout.has_mask else None
    hints = _hints(entry.layout, links, entry.shape)
    masks, codes = code_matrix(port, entry.layout.settings, shape, form.signs, count, None, hints)
    mask, codes = (entry.layout.view.tensor(x, entry.shape) for x in (masks, codes))
    if np.count_nonzero(mask) != entry.held:
        raise damaged(f"tensor {entry.name!r} does not have as many values as it should")
    bits = np.zeros(entry.shape, kind)
    if form.name == "float":
        shift = 8 * bits.dtype.itemsize - DTYPES[entry.dtype][1]
        tops = (codes[mask] + form.low).astype(kind) << bits.dtype.type(shift)
        bits[mask] = unrotated(tops | values)
    elif form.name == "raw":
        bits[mask] = values
    else:
        bits[mask] = restore(form, codes, entry.dtype, entry.shape)[mask]
    links.take(bits)
    return Stored(entry.dtype, bits)


def _hints(layout: Layout, links: Links, shape: tuple[int, ...]) -> Array | None:
    """Return the hints of the previous layer for each entry, if the layout uses them."""
    if not layout.link:
        return None
    hint = links.hint(layout.link, shape)
    if hint is None:
        raise damaged(f"a tensor of shape {shape} is said to follow another one, and does not")
    return np.ascontiguousarray(layout.view.matrix(hint))


def _with_side(entry: Entry, plain: Source) -> Form:
    """Return the form of a tensor with its table or scales, and the signs of its codes."""
    form, kind = entry.form, f"u{DTYPES[entry.dtype][0]}"
    side, signs = form.side, np.zeros(form.count, np.int8)
    if form.name == "table":
        side = entry.side.unpack(plain, form.count, kind)
        signs = signs_of(side, entry.dtype)
    elif form.name == "grid":
        side = entry.side.unpack(plain, count_groups(form.group, entry.shape), kind)
        signs = grid_signs(form.low, form.count)
    return Form(form.name, form.count, form.low, side, form.group, signs)
