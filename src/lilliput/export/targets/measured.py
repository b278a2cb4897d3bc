"""The contents and cost of an exported file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lilliput.export.targets.executed import ExecutedFile
from lilliput.frameworks.exporting.simulation import to_array
from lilliput.frameworks.work import batch_of


class MeasuredFile:
    """Counts and calls a file in its runtime."""

    def __init__(self, file: ExecutedFile) -> None:
        self.file = file

    def counts(self, model: ExecutedFile, inputs: Any) -> dict[str, Any]:
        """Return the bytes and, if known, the parameters, nonzeros and macs."""
        named, arrays = _given(inputs)
        return {**model.counts(arrays, named), "bytes": model.bytes}

    def caller(self, model: ExecutedFile, inputs: Any) -> Callable[[], Any]:
        """Return a function that executes the file once."""
        named, arrays = _given(inputs)
        return lambda: model.run(arrays, named)

    def runtime(self) -> str:
        """Return the name of the runtime and its threads."""
        threads = self.file.threads
        return f"{self.file.runtime}, {threads} thread{'s' if threads > 1 else ''}"

    def batch(self, model: Any, inputs: Any) -> int:
        """Return the number of examples in the inputs."""
        values = inputs.values() if isinstance(inputs, Mapping) else inputs
        given = values if isinstance(inputs, (Mapping, tuple, list)) else [inputs]
        return batch_of(x for x in given if hasattr(x, "shape")) or 1


def _given(inputs: Any) -> tuple[list[str], list[Any]]:
    """Return the names of named inputs, and all arrays, with named ones last."""
    named = inputs if isinstance(inputs, Mapping) else {}
    given = () if named else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return list(named), [to_array(x) for x in (*given, *named.values())]
