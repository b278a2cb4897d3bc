"""Hash everything that results depend on, so that changes of batches, functions and files are noticed.

>>> import numpy as np
>>> digest_of_values([np.zeros(2)]) == digest_of_values([np.zeros(2)])
True
>>> digest_of_values([np.zeros(2)]) == digest_of_values([np.ones(2)])
False
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from lilliput.pruning.sensitivity_probe import name_of
from lilliput.store import digest_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def digest_of_values(values: Any) -> str:
    """Return a hash of tensors in nested tuples, lists and dicts."""
    digest = hashlib.sha256()
    _add(digest, values)
    return digest.hexdigest()


def digest_of_function(function: Any) -> str:
    """Return the name of a function with a hash of its code; only the name for other callables."""
    code = getattr(function, "__code__", None)
    if code is None:
        return str(name_of(function))
    return f"{name_of(function)} {digest_of(repr(_described(code)).encode())[:16]}"


def digests_of_files(folder: Path, stem: str) -> dict[str, str]:
    """Return a hash of each file of a model, whose weights may be in separate files."""
    files = sorted(folder.glob(f"{stem}.*"))
    return {path.name: digest_of(path.read_bytes()) for path in files if path.is_file()}


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, _PLAIN):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, Mapping):
        _add(digest, [part for item in value.items() for part in item])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} of;".encode())
        for part in value:
            _add(digest, part)
    elif hasattr(value, "__array__"):
        array = _array(value)
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    else:  # its address would differ between runs
        digest.update(f"{type(value).__qualname__};".encode())


def _array(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    # Every narrower float is exact in 64 bits; NumPy does not support all of them.
    return np.asarray(tensor.double() if tensor.is_floating_point() else tensor)


def _described(code: CodeType) -> list[Any]:
    """Return the behaviour of a function, regardless of where it is defined."""
    constants = [
        _described(x) if isinstance(x, CodeType) else repr(x)
        for x in code.co_consts
        if isinstance(x, (CodeType, *_PLAIN, tuple))
    ]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]
