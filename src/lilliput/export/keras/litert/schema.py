"""The format of LiteRT files, from the installed packages."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from lilliput.errors import MissingExtraError

_HOMES = (
    "ai_edge_litert",
    "tensorflow.lite.python",
)  # LiteRT's own package, or the copy in TensorFlow


@cache
def schema() -> Any:
    """Return the module with the classes of the format."""
    return part_of_litert("schema_py_generated", "writing")


def part_of_litert(name: str, purpose: str) -> Any:
    """Return a module of LiteRT, or raise an error that says what to install."""
    for home in _HOMES:
        try:
            return import_module(f"{home}.{name}")
        except ImportError:
            continue
    raise MissingExtraError(f"{purpose} LiteRT files needs pip install 'lilliput[litert]'")


@cache
def names(enumeration: str) -> dict[int, str]:
    """Return the names of an enumeration's values, as ``names('BuiltinOperator')[3] == 'CONV_2D'``."""
    members = vars(getattr(schema(), enumeration)).items()
    return {value: key for key, value in members if isinstance(value, int)}
