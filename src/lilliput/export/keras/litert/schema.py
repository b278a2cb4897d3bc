"""The format of LiteRT files, as the packages at hand define it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from lilliput.errors import MissingExtraError

_HOMES = ("ai_edge_litert.schema_py_generated", "tensorflow.lite.python.schema_py_generated")


@cache
def schema() -> Any:
    """Return the module with the classes of the format."""
    for home in _HOMES:
        try:
            return import_module(home)
        except ImportError:
            continue
    raise MissingExtraError("writing LiteRT files needs pip install 'lilliput[litert]'")


@cache
def names(enumeration: str) -> dict[int, str]:
    """Return the names of an enumeration's values, as ``names('BuiltinOperator')[3] == 'CONV_2D'``."""
    members = vars(getattr(schema(), enumeration)).items()
    return {value: key for key, value in members if isinstance(value, int)}
