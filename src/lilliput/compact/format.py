"""The file format: a checksum, a header of a few bytes per tensor, and streams of symbols and of plain bits.

::

    "LILC" 1 byte version | 4 bytes CRC-32 of what follows | length of the header | header, deflated | chunks

A chunk is one stream of the entropy coder and one of plain bits for several tensors, so that small
tensors share the overhead of streams. The header is validated completely, including sizes, before
anything is allocated.

>>> import numpy as np
>>> data = encode({"fc.weight": Stored.of(np.eye(64, dtype=np.float32))}, note="eye")
>>> len(data) < 140
True
>>> decode(data).tensors["fc.weight"].array()[:2, :2]
array([[1., 0.],
       [0., 1.]], dtype=float32)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lilliput.compact.ans import Reader, Writer, damaged
from lilliput.compact.entries import Entry, read_tensor, write_tensor
from lilliput.compact.fields import Bytes, Source
from lilliput.compact.layouts import Links
from lilliput.compact.tensors import Stored
from lilliput.errors import StateError

MAGIC = b"LILC"
VERSION = 1
LIMIT = 1 << 32  # bytes of all tensors together, unless the reader sets another limit
STEPS = 1 << 22  # rows of all tensors together: reading that many takes minutes
_CHUNK = 1 << 20  # values
_HEADER = 1 << 24  # bytes, inflated
_MOST_TENSORS = 1 << 16
_EMPTY = Writer().finish(1)


@dataclass(frozen=True)
class Content:
    """The content of a file.

    Parameters
    ----------
    tensors : dict
        By name.
    note : str
        A note of the writer, such as how a model was shrunk.
    """

    tensors: dict[str, Stored]
    note: str = ""


def encode(tensors: Mapping[str, Stored], note: str = "") -> bytes:
    """Return tensors as the bytes of a file; reading it restores them bit by bit."""
    head, body = Bytes(), bytearray()
    head.text(note)
    tensors, twins = _without_twins(tensors)
    head.number(len(twins))
    for name, number in twins.items():
        head.text(name)
        head.number(number)
    chunks = list(_chunks(tensors))
    head.number(len(chunks))
    links = Links()
    for names in chunks:
        entries, writer, plain = Bytes(), Writer(), bytearray()
        for name in names:
            write_tensor(name, tensors[name], entries, writer, plain, links)
        lanes = writer.best_lanes()
        stream = writer.finish(lanes) if writer.cost else b""
        for number in (len(names), lanes, len(stream) // 4, len(plain)):
            head.number(number)
        head.data += entries.data
        body += stream + plain
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    header = packed.compress(bytes(head.data)) + packed.flush()
    start = Bytes()
    start.number(len(header))
    content = bytes(start.data) + header + bytes(body)
    return MAGIC + bytes([VERSION]) + struct.pack("<I", zlib.crc32(content)) + content


def decode(
    data: bytes,
    check: Callable[[list[Entry]], None] | None = None,
    limit: int = LIMIT,
    steps: int | None = STEPS,
) -> Content:
    """Read a file written by :func:`encode`, or raise with the problem.

    Parameters
    ----------
    data : bytes
        The file.
    check : callable, optional
        Called with the header before any memory is allocated; it may raise.
    limit : int
        The largest total size of all tensors in bytes.
    steps : int, optional
        The largest number of rows that may have to be read sequentially; None if the shapes are known to be
        those of a model.
    """
    source, header = _opened(data)
    note = header.text()
    entries: list[Entry] = []
    chunks = []
    twins = [(header.text(), header.number()) for _ in range(header.number(_MOST_TENSORS))]
    for _ in range(header.number(_MOST_TENSORS)):
        count, lanes, words, size = (header.number() for _ in range(4))
        if count > _MOST_TENSORS - len(entries):
            raise damaged(f"it has more than {_MOST_TENSORS:,} tensors")
        found = [Entry.read(header) for _ in range(count)]
        entries += found
        chunks.append((found, lanes, source.take(4 * words), Source(source.take(size))))
    header.close()
    source.close()
    if any(number >= len(entries) for _, number in twins):
        raise damaged("a tensor is said to be the same as one that is not there")
    entries += [replace(entries[number], name=name) for name, number in twins]
    _check_sizes(entries, limit, steps)
    if check is not None:
        check(entries)
    tensors: dict[str, Stored] = {}
    links = Links()
    for found, lanes, stream, plain in chunks:
        reader = Reader(stream or _EMPTY, lanes)
        for entry in found:
            tensors[entry.name] = read_tensor(entry, reader, plain, links)
        reader.close()
        plain.close()
    tensors |= {name: tensors[entries[number].name] for name, number in twins}
    return Content(tensors, note)


def is_compact(data: bytes) -> bool:
    """Whether bytes start like a compact file."""
    return data[: len(MAGIC)] == MAGIC


def read_note(data: bytes) -> str:
    """Return the note in a file, without reading its tensors."""
    return _opened(data)[1].text()


def _opened(data: bytes) -> tuple[Source, Source]:
    """Return what follows the header, and the header."""
    if not is_compact(data):
        raise StateError("not a compact file: it does not start with 'LILC'.")
    if len(data) > 4 and data[4] > VERSION:
        raise StateError(
            f"a compact file of version {data[4]}; this version of Lilliput reads up to {VERSION}: "
            "upgrade Lilliput."
        )
    if len(data) < 9 or data[4] != VERSION:
        raise damaged("it ends too early")
    if zlib.crc32(data[9:]) != struct.unpack("<I", data[5:9])[0]:
        raise damaged("its checksum differs")
    source = Source(data[9:])
    return source, Source(_inflate(source.take(source.number(len(data)))))


def _inflate(data: bytes) -> bytes:
    try:
        machine = zlib.decompressobj(-15)
        content = machine.decompress(data, _HEADER)
    except zlib.error as error:
        raise damaged(f"its header cannot be inflated ({error})") from None
    if not machine.eof or machine.unused_data:
        raise damaged("its header is too long or not complete")
    return content


def _check_sizes(entries: list[Entry], limit: int, steps: int | None) -> None:
    names = {entry.name for entry in entries}
    if len(names) != len(entries):
        raise damaged("two tensors have the same name")
    total = sum(entry.size for entry in entries)
    if total > limit:
        raise StateError(
            f"the tensors of this compact file take {total:,} bytes, expected at most {limit:,}."
        )
    rows = sum(entry.steps for entry in entries)
    if steps is not None and rows > steps:
        raise StateError(
            f"the tensors of this compact file have {rows:,} rows to read, expected at most {steps:,}; if "
            "you trust it, load it into its model."
        )


def _without_twins(
    tensors: Mapping[str, Stored],
) -> tuple[dict[str, Stored], dict[str, int]]:
    """Return the distinct tensors, and which one each of the others equals: weights are tied by name only."""
    kept: dict[str, Stored] = {}
    twins: dict[str, int] = {}
    known: dict[tuple[Any, ...], list[int]] = {}
    for name, stored in tensors.items():
        bits = np.ascontiguousarray(stored.bits)
        key = (stored.dtype, stored.bits.shape, zlib.crc32(bits.data if bits.size else b""))
        others, held = known.setdefault(key, []), list(kept.values())
        twin = next((i for i in others if np.array_equal(held[i].bits, stored.bits)), None)
        if twin is None:
            others.append(len(kept))
            kept[name] = stored
        else:
            twins[name] = twin
    return kept, twins


def _chunks(tensors: Mapping[str, Stored]) -> Iterator[list[str]]:
    """Yield the names of tensors that share streams."""
    names: list[str] = []
    count = 0
    for name, stored in tensors.items():
        names.append(name)
        count += stored.bits.size
        if count >= _CHUNK:
            yield names
            names, count = [], 0
    if names:
        yield names
