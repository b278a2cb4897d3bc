"""Hash everything that results depend on, so that changes of batches, functions and files are noticed.

>>> import numpy as np
>>> digest_of_values([np.zeros(2)]) == digest_of_values([np.zeros(2)])
True
>>> digest_of_values([np.zeros(2)]) == digest_of_values([np.ones(2)])
False
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FunctionType
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
    """Return the name of a function with a hash of its code and of the arrays that it uses.

    These are its defaults, what ``functools.partial`` binds, and arrays in its closure, in its object, and
    among the global variables that it names, also through other functions of its module. Numbers that it
    counts with are not part of it, nor are data loaders, which cannot be compared.
    """
    digest = hashlib.sha256()
    while isinstance(function, functools.partial):
        _add(digest, [function.args, function.keywords])
        function = function.func
    _add_function(digest, function, set())
    return f"{name_of(function)} {digest.hexdigest()[:16]}"


def digests_of_files(folder: Path, stem: str) -> dict[str, str]:
    """Return a hash of each file of a model, whose weights may be in separate files."""
    files = sorted(folder.glob(f"{stem}.*"))
    return {path.name: digest_of(path.read_bytes()) for path in files if path.is_file()}


def _add_function(digest: Any, function: Any, seen: set[CodeType]) -> None:
    """Add a function, or an object that can be called, and the functions of its module that it names."""
    called: Any = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(called, "__code__", None)
    if code is None or code in seen:  # not written in Python
        return
    seen.add(code)
    digest.update(repr(_described(code)).encode())
    owner = getattr(function, "__self__", function)
    _add(digest, [called.__defaults__, called.__kwdefaults__])
    _add(digest, _arrays([x.cell_contents for x in called.__closure__ or () if _is_filled(x)]))
    _add(digest, _arrays(list(getattr(owner, "__dict__", {}).values())))
    named = [called.__globals__.get(name) for name in sorted(_names(code))]
    _add(digest, _arrays(named))
    for other in named:
        if isinstance(other, FunctionType) and other.__module__ == called.__module__:
            _add_function(digest, other, seen)


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and the functions inside it use."""
    inside = [x for x in code.co_consts if isinstance(x, CodeType)]
    return set(code.co_names).union(*map(_names, inside))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable without a value yet
        return False


def _arrays(value: Any) -> list[Any]:
    """Return the arrays in nested tuples, lists and dicts; functions count what else is in them."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in _arrays(part)]
    return [value] if hasattr(value, "__array__") and not isinstance(value, type) else []


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, _PLAIN):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, Mapping):
        _add(digest, [part for item in value.items() for part in item])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} of;".encode())
        for part in value:
            _add(digest, part)
    elif (array := _array(value)) is not None:
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    else:  # its address would differ between runs
        digest.update(f"{type(value).__qualname__};".encode())


def _array(value: Any) -> Any:
    """Return a value as an array, or None if it is none, or has no numbers to compare."""
    if not hasattr(value, "__array__") or isinstance(value, type):
        return None
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            # Every narrower float is exact in 64 bits; NumPy does not support all of them.
            value = value.double() if value.is_floating_point() else value
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # sparse, or without memory
        return None
    return None if array.dtype.hasobject else array


def _described(code: CodeType) -> list[Any]:
    """Return the behaviour of a function, regardless of where it is defined."""
    constants = [
        _described(x) if isinstance(x, CodeType) else repr(x)
        for x in code.co_consts
        if isinstance(x, (CodeType, *_PLAIN, tuple))
    ]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]
