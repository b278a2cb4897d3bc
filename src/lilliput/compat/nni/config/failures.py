"""Errors that NNI's users can catch: a wrong config list is also a ``schema.SchemaError``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from lilliput.errors import ConfigError


@contextmanager
def as_schema_errors() -> Iterator[None]:
    """Raise config errors as both kinds, if the package ``schema`` is installed; NNI depended on it."""
    try:
        yield
    except ConfigError as error:
        kind = _schema_error()
        if kind is None or isinstance(error, kind):
            raise
        ours: Any = type(error)
        theirs: Any = kind
        raise _joined(ours, theirs)(error) from error


def _schema_error() -> type[Exception] | None:
    try:
        kind = import_module("schema").SchemaError
    except (ImportError, AttributeError):
        return None
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


@cache
def _joined(ours: Any, theirs: Any) -> Any:
    """Return the class of errors that both ``except`` clauses catch."""

    def __init__(self: ConfigError, error: ConfigError) -> None:
        Exception.__init__(self, *error.args)
        vars(self).update(vars(error))
        # The parts of SchemaError.code.
        vars(self).update(autos=[str(error)], errors=[])

    members = {"__init__": __init__, "__module__": ours.__module__, "__doc__": ours.__doc__}
    return type(ours.__name__, (ours, theirs), members)
