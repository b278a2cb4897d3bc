"""Distinguish the user's code in a traceback from that of packages, by where the packages are installed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType


def is_code_of(filename: str, *packages: ModuleType) -> bool:
    """Whether a file belongs to one of some imported packages.

    A folder that merely has a package's name, such as a clone or a project called ``torch``, does
    not count.

    Examples
    --------
    >>> import json
    >>> is_code_of(json.decoder.__file__, json), is_code_of("/home/me/json/net.py", json)
    (True, False)
    """
    return any(is_inside(filename, folder) for x in packages for folder in _folders(x))


@cache
def is_inside(filename: str, folder: str) -> bool:
    """Whether a file is in a folder, with links resolved; False for code without a file (``<string>``)."""
    if filename.startswith("<"):
        return False
    return Path(filename).resolve().is_relative_to(Path(folder).resolve())


@cache
def _folders(package: ModuleType) -> tuple[str, ...]:
    return tuple(getattr(package, "__path__", ()))
