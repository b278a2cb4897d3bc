"""torch's table of ONNX functions, read once: reading it takes as long as exporting a small model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from typing import Any

_HOME = "torch.onnx._internal.exporter._registration"
_tables: dict[Any, Any] = {}  # by the arguments they were read with
_one_export = RLock()


@contextmanager
def reading_once() -> Iterator[None]:
    """Let exports inside reuse the table read by an earlier one; other exports read their own."""
    with _one_export:  # first: another export may have patched it
        try:
            home: Any = import_module(_HOME).ONNXRegistry
            read, held = home.from_torchlib, home.__dict__["from_torchlib"]
        except (
            ImportError,
            AttributeError,
            KeyError,
        ):  # another version of torch: it reads each time
            yield
            return

        def kept(*args: Any, **kwargs: Any) -> Any:
            key = (args, tuple(sorted(kwargs.items())))
            if key not in _tables:
                _tables[key] = read(*args, **kwargs)
            table = copy.copy(_tables[key])  # torch adds an export's own functions to it
            table.functions = {name: [*found] for name, found in table.functions.items()}
            return table

        home.from_torchlib = staticmethod(kept)
        try:
            yield
        finally:
            home.from_torchlib = held
