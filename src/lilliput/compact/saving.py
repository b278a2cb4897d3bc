"""Write the weights of a model as one file, and load them again.

>>> import tempfile, torch
>>> from lilliput.torch import LevelPruner
>>> model = torch.nn.Linear(64, 64)
>>> model = LevelPruner(model, [{"sparsity": 0.95}]).compress()
>>> with tempfile.TemporaryDirectory() as folder:
...     size = save(model, f"{folder}/small.lil", compact=True)
...     again = load(torch.nn.Linear(64, 64), f"{folder}/small.lil")
>>> torch.equal(again.weight, model.weight), size < 64 * 64 * 4 / 10
(True, True)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.compact.entries import Entry
from lilliput.compact.format import LIMIT, STEPS, Content, decode, encode, is_compact, read_note
from lilliput.compact.tensors import DTYPES, Stored, check_type
from lilliput.errors import ConfigError, StateError
from lilliput.files import write_atomically
from lilliput.frameworks import backend_of

Types = Mapping[str, tuple[str, tuple[int, ...]]]
_MOST_LISTED = 5
# Names of the types in safetensors.
_SHORT = {
    "BOOL": "bool",
    **{
        f"{s}{8 * n}": f"{k}{8 * n}" for s, k in (("I", "int"), ("U", "uint")) for n in (1, 2, 4, 8)
    },
    **{f"F{n}": f"float{n}" for n in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    compact: bool = False,
    bias_bits: int | None = None,
) -> int:
    """Write the weights of a model as one file, and return its bytes.

    The file contains the plain model: with masks and the rounding of weights applied, as in ``export_model``.
    The model is not changed. :func:`load` loads the weights into a model of the same class.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        The model, with or without compressors.
    path : str or path
        The file; it is replaced atomically.
    compact : bool
        Whether to write as few bytes as possible: masks, shared or rounded weights and exponents are entropy
        coded. Every number is restored exactly, except for the sign of zero. Otherwise, the file is a
        safetensors file.
    bias_bits : int, optional
        Round the biases in the file to this number of bits, from 2 to 16, with one scale for each: next
        to sparse weights of 4 bits, float biases would be a quarter of the file. Biases of recurrent layers
        and attention are included; of your own modules, parameters of one dimension named ``bias``,
        ``bias_…`` or ``…_bias``. The loaded model then uses these biases, so evaluate that one. None, the
        default, keeps them exactly.

    Returns
    -------
    int
        The bytes of the file.
    """
    data = to_bytes(model, compact, bias_bits)
    write_atomically(path, data)
    return len(data)


def to_bytes(model: Any, compact: bool, bias_bits: int | None = None) -> bytes:
    """Return the bytes that :func:`save` writes."""
    if bias_bits is not None and not (isinstance(bias_bits, int) and 2 <= bias_bits <= 16):
        raise ConfigError(f"bias_bits: received {bias_bits!r}, expected 2 to 16, or None.")
    backend = backend_of(model)
    stored = {name: Stored(*tensor) for name, tensor in backend.stored(model).items()}
    if bias_bits is not None:
        biases = backend.stored_biases(model)
        stored |= {k: _rounded(k, x, bias_bits) for k, x in stored.items() if k in biases}
    return encode(without_negative_zeros(stored)) if compact else to_safetensors(stored)


def load(model: Any, path: str | os.PathLike[str]) -> Any:
    """Load the weights of a file written by :func:`save` into a model, and return it.

    If names, shapes or types do not fit, or the file is damaged, the model is not changed.
    """
    backend = backend_of(model)
    expected = backend.stored_types(model)
    content = read_weights(path, expected)
    if content.note:
        raise StateError(f"{os.fspath(path)}: a shrunk model; load it with lilliput.torch.load.")
    tensors = {name: (held.dtype, held.bits) for name, held in content.tensors.items()}
    try:
        backend.load_stored(model, tensors)
    except StateError as error:
        raise StateError(f"{os.fspath(path)}: {error}") from error
    return model


def read_weights(
    path: str | os.PathLike[str], expected: Types | None = None, limit: int = LIMIT
) -> Content:
    """Return the tensors of a compact or a safetensors file.

    Parameters
    ----------
    path : str or path
        The file.
    expected : dict, optional
        Type and shape of each expected tensor; others are rejected before memory is allocated for them.
    limit : int
        The largest total size of all tensors of a compact file in bytes.
    """
    name, data = os.fspath(path), _bytes_of(path)
    try:
        if is_compact(data):
            steps = STEPS if expected is None else None
            return decode(data, lambda entries: _compare(entries, expected), limit, steps)
        content = Content(parse_safetensors(data))
        _check_fit({k: (v.dtype, v.bits.shape) for k, v in content.tensors.items()}, expected)
        return content
    except StateError as error:
        raise StateError(f"{name}: {error}") from error


def has_plan(path: str | os.PathLike[str]) -> bool:
    """Whether a file contains how a model was shrunk."""
    data = _bytes_of(path)
    try:
        return is_compact(data) and bool(read_note(data))
    except StateError as error:
        raise StateError(f"{os.fspath(path)}: {error}") from error


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StateError(f"{os.fspath(path)}: no readable file ({error}).") from error


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> tuple[int, int]:
    """Convert a safetensors file to a compact one, or vice versa; return the bytes of both.

    A safetensors file cannot contain how a model was shrunk: a compact file with that raises an error.
    """
    content = read_weights(source)
    if content.note:
        raise StateError(f"{os.fspath(source)}: a shrunk model; load it with lilliput.torch.load.")
    size, is_plain = Path(source).stat().st_size, not is_compact_file(source)
    tensors = without_negative_zeros(content.tensors) if is_plain else content.tensors
    data = encode(tensors) if is_plain else to_safetensors(tensors)
    write_atomically(target, data)
    return size, len(data)


def is_compact_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file starts like a compact one, whatever its name."""
    try:
        with open(path, "rb") as file:
            return is_compact(file.read(8))
    except OSError as error:
        raise StateError(f"{os.fspath(path)}: no readable file ({error}).") from error


def without_negative_zeros(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return tensors in which every zero is positive.

    Masks and rounding produce zeros of both signs, which would take up to a bit each and mean nothing.
    """
    found = {}
    for name, stored in tensors.items():
        bits, negative = stored.bits, 1 << 8 * stored.bits.dtype.itemsize - 1
        if "float" in stored.dtype:
            bits = np.where(bits == bits.dtype.type(negative), bits.dtype.type(0), bits)
        found[name] = Stored(stored.dtype, bits)
    return found


def to_safetensors(tensors: Mapping[str, Stored]) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    from safetensors import TensorSpec, serialize

    for name, stored in tensors.items():
        check_type(name, stored)
        if name == "__metadata__":
            raise StateError(
                f"tensor {name!r}: safetensors files use this name themselves; rename it, or write a compact "
                "file."
            )
    # References to the arrays keep them in memory while safetensors reads it.
    held = {name: np.ascontiguousarray(stored.bits) for name, stored in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=tensors[name].dtype,
            shape=list(tensors[name].bits.shape),
            data_ptr=bits.ctypes.data,
            data_len=bits.nbytes,
        )
        for name, bits in held.items()
    }
    return bytes(serialize(specs))


def parse_safetensors(data: bytes) -> dict[str, Stored]:
    """Return the tensors of a safetensors file."""
    from safetensors import SafetensorError, deserialize

    try:
        found = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise StateError(f"not a compact file, and not a safetensors file: {error}") from error
    tensors = {}
    for name, held in found.items():
        dtype = _SHORT.get(held["dtype"])
        if dtype is None:
            raise StateError(f"tensor {name!r} has the type {held['dtype']}, which is unknown.")
        bits = np.frombuffer(bytearray(held["data"]), f"<u{DTYPES[dtype][0]}")
        tensors[name] = Stored(dtype, bits.reshape(held["shape"]))
    return tensors


def _rounded(name: str, stored: Stored, bits: int) -> Stored:
    """Return a bias as multiples of a scale; unchanged if it has no such numbers."""
    if "float" not in stored.dtype or not stored.bits.size:
        return stored
    if stored.dtype.startswith("float8"):
        raise ConfigError(
            f"bias_bits: {name!r} is {stored.dtype}, expected float16, bfloat16, float32 or float64; omit "
            "bias_bits, or convert the model first."
        )
    is_brain = stored.dtype == "bfloat16"  # the upper half of a float32
    values = (stored.bits.astype("u4") << 16).view("f4") if is_brain else stored.array()
    exact = values.astype(np.float64)
    largest = np.abs(exact).max()
    if not np.isfinite(largest):
        return stored
    scale = values.dtype.type(largest / (2 ** (bits - 1) - 1))
    if scale == 0:  # also if a narrow type has no number that small
        return stored
    with np.errstate(over="ignore"):
        rounded = np.round(exact / np.float64(scale)).astype(values.dtype) * scale
    if not np.isfinite(rounded).all():
        return stored
    return Stored("bfloat16", _upper_half(rounded)) if is_brain else Stored.of(rounded)


def _upper_half(values: Any) -> Any:
    """Return the bits of the bfloat16 nearest to each float32, ties to even."""
    bits = values.view("u4")
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("u2")


def _compare(entries: list[Entry], expected: Types | None) -> None:
    _check_fit({entry.name: (entry.dtype, entry.shape) for entry in entries}, expected)


def _check_fit(found: Types, expected: Types | None) -> None:
    """Raise for tensors that are not those of a model."""
    if expected is None or found == expected:
        return
    problems = [f"{name!r} is missing" for name in expected if name not in found]
    problems += [f"{name!r} is not in the model" for name in sorted(found) if name not in expected]
    problems += [
        f"{name!r} is {_said(found[name])}, expected {_said(expected[name])}"
        for name in expected
        if name in found and found[name] != expected[name]
    ]
    if problems:
        more = len(problems) - _MOST_LISTED
        listed = "; ".join([*problems[:_MOST_LISTED], *([f"{more} more"] if more > 0 else [])])
        raise StateError(
            f"its tensors are not those of this model: {listed}.{_factorized(found, expected)}"
        )


def _factorized(found: Types, expected: Types) -> str:
    """Return what to do if a layer of the model has been replaced with two; empty if none has."""
    for name, (_, shape) in expected.items():
        layer = name.rpartition(".")[0]
        first, second = (found.get(f"{layer}.{i}.weight", ("", ()))[1] for i in (0, 1))
        if len(shape) > 1 and first and second[:2] == (shape[0], first[0]):
            return (
                f" {layer!r} looks factorized: first call SVDFactorizer(model, "
                "result.config_list()).lay_out()."
            )
    return ""


def _said(tensor: tuple[str, tuple[int, ...]]) -> str:
    return f"{tensor[0]} of shape {list(tensor[1])}"
