"""From an old name to the current object, or to an error with the alternatives."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from lilliput import __version__
from lilliput.compat.nni.imports.later import class_of
from lilliput.compat.nni.imports.tables import (
    FOR_TENSORFLOW,
    HERE,
    HERE_IN_V1,
    INTERNAL,
    NAMES,
    PATHS,
    RENAMED,
    SEARCHING,
    STACKS,
    TODAY,
)
from lilliput.errors import ConfigError, LilliputError, nearest


class UnavailableImportError(LilliputError, ImportError):
    """NNI had the imported name, but Lilliput does not."""


class UnavailableNameError(LilliputError, AttributeError):
    """A module of NNI has a name that Lilliput does not."""


def names_at(path: str) -> list[str]:
    """Return the names NNI had at a path, submodules included."""
    own = [name for part in PATHS[path] for name in NAMES[part]]
    return list(dict.fromkeys([*own, *children(path)]))


def children(path: str) -> list[str]:
    """Return the names of the submodules of a path.

    Examples
    --------
    >>> children("nni.algorithms")
    ['compression']
    """
    return [p.rpartition(".")[2] for p in PATHS if p.rpartition(".")[0] == path]


def available(path: str) -> list[str]:
    """Return the names at a path that can be used in this version."""
    return [name for name in names_at(path) if name in children(path) or _find(path, name)]


def resolve(path: str, name: str) -> Any:
    """Return the object that replaces a name of NNI.

    Raises
    ------
    UnavailableNameError
        If NNI had no such name there, or Lilliput has no equivalent.
    """
    if name in children(path):
        return import_module(f"{path}.{name}")
    found = _find(path, name) if name in names_at(path) else None
    if found is None:
        raise UnavailableNameError(explain_missing(path, name))
    return found


def explain_missing(path: str, name: str) -> str:
    """Return the message that a name is not available, with the names that are."""
    if path == "nni":
        return f"{path}.{name} is not available: Lilliput replaces NNI's model compression only."
    usable = [found for found in available(path) if not _is_internal(path, found)]
    listed = f"Available in {path}: {', '.join(sorted(usable))}." if usable else ""
    if name in names_at(path):
        version = f"this version of Lilliput ({__version__})"
        return f"{path}.{name} is not available in {version}. {listed}"
    hint = nearest(name, names_at(path))
    return (
        f"{path}.{name} is not here: the shim has the documented names of NNI, not its internal "
        f"modules.{hint} {listed}"
    )


def _is_internal(path: str, name: str) -> bool:
    """Whether a name can be imported, but not used."""
    return any(name in NAMES[part] for part in PATHS[path] if part in INTERNAL)


def find_name(path: str, name: str) -> Any:
    """Return the object behind a name, or None if NNI or Lilliput has none."""
    return _find(path, name) if name in names_at(path) and name not in children(path) else None


def _find(path: str, name: str) -> Any:
    """Return the object behind a name that NNI had at a path, or None."""
    part = next(part for part in PATHS[path] if name in NAMES[part])
    if name in HERE and part not in FOR_TENSORFLOW:
        is_v1 = f"{path}.".startswith("nni.compression.torch.")
        own = HERE_IN_V1.get(name, name) if is_v1 else name
        return getattr(import_module(f"lilliput.compat.nni.{HERE[name]}"), own)
    if part in INTERNAL:
        return getattr(import_module("lilliput.compat.nni.imports.internals"), name)
    if part == "tuning":
        return None
    candidates = (name, *RENAMED.get(name, ()))
    found = next(filter(None, (_registered(part, candidate) for candidate in candidates)), None)
    if part not in FOR_TENSORFLOW:
        found = found or getattr(import_module("lilliput.torch"), TODAY.get(name, name), None)
        if found is None and name in SEARCHING:
            from lilliput.compat.nni.imports.generations import searching_form  # it needs torch

            return searching_form(name, stack_of(path))
        return class_of(name) if found is None else _in_form(found, stack_of(path))
    # The base classes for TensorFlow's users are independent of the framework, so none is imported.
    found = found or getattr(import_module("lilliput"), TODAY.get(name, name), None)
    if name != "SlimPruner" and "keras" not in getattr(found, "backends", ("keras",)):
        return None
    from lilliput.compat.nni.classes.older_names import with_older_names
    from lilliput.compat.nni.classes.tensorflow import in_keras_form

    in_form = with_older_names if path.startswith("nni.compressors.") else in_keras_form
    return in_form(found) if isinstance(found, type) else found


def stack_of(path: str) -> str:
    """Return the generation of classes that a path belongs to.

    Examples
    --------
    >>> stack_of("nni.compression.torch"), stack_of("nni.compression.pruning")
    ('first', 'third')
    """
    return next(stack for start, stack in STACKS if f"{path}.".startswith(f"{start}."))


@cache
def _in_form(found: Any, stack: str) -> Any:
    """Return a current compressor in the form of a generation, anything else unchanged."""
    if not (isinstance(found, type) and issubclass(found, import_module("lilliput").Compressor)):
        return found
    if "torch" not in getattr(found, "backends", ()):
        return found
    from lilliput.compat.nni.imports.generations import adapt  # here: it needs torch

    return adapt(found, stack)


def _registered(part: str, name: str) -> Any:
    kind = part.removeprefix("tensorflow ").removesuffix("s")
    if kind not in ("pruner", "quantizer"):
        return None
    try:
        return getattr(import_module("lilliput.algorithms"), kind)(name)
    except ConfigError:
        return None
