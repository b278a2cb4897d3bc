"""From an old name to today's object, or to an error that says what there is instead."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lilliput import __version__
from lilliput.compat.nni.tables import FOR_TENSORFLOW, NAMES, PATHS, RENAMED, TODAY
from lilliput.errors import ConfigError, LilliputError, nearest


class UnavailableImportError(LilliputError, ImportError):
    """NNI had what is imported here, Lilliput does not have it."""


class UnavailableNameError(LilliputError, AttributeError):
    """A module of NNI is asked for a name that Lilliput does not have."""


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
    """Return the object that stands for a name of NNI.

    Raises
    ------
    UnavailableNameError
        When NNI had no such name there, or Lilliput has nothing that corresponds.
    """
    if name in children(path):
        return import_module(f"{path}.{name}")
    found = _find(path, name) if name in names_at(path) else None
    if found is None:
        raise UnavailableNameError(explain_missing(path, name))
    return found


def explain_missing(path: str, name: str) -> str:
    """Say that a name cannot be had, and what can."""
    if name in NAMES["tuning"] and "tuning" in PATHS[path]:
        return f"{path}.{name} is not available: Lilliput replaces NNI's model compression only."
    usable = available(path)
    listed = f"Available in {path}: {', '.join(sorted(usable))}." if usable else ""
    if name in names_at(path):
        version = f"this version of Lilliput ({__version__})"
        return f"{path}.{name} is not available in {version}. {listed}"
    return f"module {path!r} has no attribute {name!r}.{nearest(name, names_at(path))} {listed}"


def _find(path: str, name: str) -> Any:
    """Return the object behind a name that NNI had at a path, None if there is none."""
    part = next(part for part in PATHS[path] if name in NAMES[part])
    if part == "tuning":
        return None
    candidates = (name, *RENAMED.get(name, ()))
    found = next(filter(None, (_registered(part, candidate) for candidate in candidates)), None)
    if part not in FOR_TENSORFLOW:
        return found or getattr(import_module("lilliput.torch"), TODAY.get(name, name), None)
    # What TensorFlow's users subclassed is the same for all frameworks, so none is imported for it.
    found = found or getattr(import_module("lilliput"), TODAY.get(name, name), None)
    return found if "keras" in getattr(found, "backends", ("keras",)) else None


def _registered(part: str, name: str) -> Any:
    kind = part.removeprefix("tensorflow ").removesuffix("s")
    if kind not in ("pruner", "quantizer"):
        return None
    try:
        return getattr(import_module("lilliput.algorithms"), kind)(name)
    except ConfigError:
        return None
