"""Integers as bytes: those of a header, and the bits of weights that no model can predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lilliput.compact.ans import damaged

Array = Any

_BLOCK = 1 << 16
_LONGEST = 10  # bytes of a number of 64 bits


class Bytes:
    """Write small numbers in few bytes.

    Examples
    --------
    >>> out = Bytes()
    >>> out.number(300); out.text("fc1.weight")
    >>> source = Source(bytes(out.data))
    >>> source.number(), source.text()
    (300, 'fc1.weight')
    """

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int) -> None:
        """Write a number of at least 0, seven bits per byte."""
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def text(self, value: str) -> None:
        """Write a string with its length."""
        content = value.encode()
        self.number(len(content))
        self.data += content


class Source:
    """Read what :class:`Bytes` wrote, never past the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, most: int = (1 << 64) - 1) -> int:
        """Read a number of at most ``most``."""
        value = 0
        for i in range(_LONGEST):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * i
            if byte < 128:
                break
        else:
            raise damaged("a number has no end")
        if value > most:
            raise damaged(f"received the number {value}, expected at most {most}")
        return value

    def text(self) -> str:
        """Read a string."""
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError as error:
            raise damaged(f"a text is not UTF-8 ({error})") from None

    def take(self, count: int) -> bytes:
        """Read bytes."""
        if count > len(self._data) - self._at:
            raise damaged("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def close(self) -> None:
        """Check that nothing is left."""
        if self._at != len(self._data):
            raise damaged("it holds more data than its header says")


@dataclass(frozen=True)
class Planes:
    """Unsigned integers without the bits that are the same in all of them.

    Parameters
    ----------
    varying : tuple of int
        The bits that differ, lowest first; these are stored verbatim.
    base : int
        The other bits.

    Examples
    --------
    >>> values = np.array([12, 8, 9], np.uint8)
    >>> planes = Planes.of(values)
    >>> planes
    Planes(varying=(0, 2), base=8)
    >>> planes.unpack(Source(planes.pack(values)), 3, np.uint8)
    array([12,  8,  9], dtype=uint8)
    """

    varying: tuple[int, ...] = ()
    base: int = 0

    @classmethod
    def of(cls, values: Array) -> Planes:
        """Return the planes of values."""
        if not len(values):
            return cls()
        differ = int(np.bitwise_or.reduce(values ^ values[0]))
        width = 8 * values.dtype.itemsize
        varying = tuple(i for i in range(width) if differ >> i & 1)
        return cls(varying, int(values[0]) & ~differ)

    def write(self, out: Bytes) -> None:
        """Write which bits differ."""
        out.number(sum(1 << i for i in self.varying))
        out.number(self.base)

    @classmethod
    def read(cls, source: Source, width: int) -> Planes:
        """Read which bits differ, for integers of that many bits."""
        differ, base = (source.number((1 << width) - 1) for _ in range(2))
        return cls(tuple(i for i in range(width) if differ >> i & 1), base & ~differ)

    def pack(self, values: Array) -> bytes:
        """Return the bits that differ, one block of values after the other."""
        kind, parts = values.dtype.type, []
        for at in range(0, len(values) if self.varying else 0, _BLOCK):
            block = values[at : at + _BLOCK]
            bits = [(block >> kind(plane) & kind(1)).astype(np.uint8) for plane in self.varying]
            parts.append(np.packbits(np.concatenate(bits)).tobytes())
        return b"".join(parts)

    def unpack(self, source: Source, count: int, dtype: Any) -> Array:
        """Read this number of values."""
        count_bytes = _packed_size(count, len(self.varying))
        content = Source(source.take(count_bytes))  # before memory is allocated for the values
        values = np.full(count, self.base, dtype)
        for at in range(0, count if self.varying else 0, _BLOCK):
            size = min(_BLOCK, count - at)
            packed = content.take(_packed_size(size, len(self.varying)))
            bits = np.unpackbits(np.frombuffer(packed, np.uint8))[: size * len(self.varying)]
            for plane, row in zip(self.varying, bits.reshape(-1, size), strict=True):
                values[at : at + size] |= row.astype(dtype) << values.dtype.type(plane)
        return values


def _packed_size(count: int, planes: int) -> int:
    """Return the bytes of this number of values: each block starts at a byte boundary."""
    whole, rest = divmod(count, _BLOCK)
    return whole * (_BLOCK * planes // 8) + (rest * planes + 7) // 8
