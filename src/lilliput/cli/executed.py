"""Exported files on the command line: their inputs, and the difference of two outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lilliput.cli.inputs import Sources, like_framework, require_inputs
from lilliput.cli.models import is_file, open_model
from lilliput.errors import ConfigError, LilliputError, MissingExtraError


def open_executed(path: str | Path) -> Any:
    """Open an exported file; one that no runtime can read is bad input."""
    from lilliput.export.targets.executed import open_file

    try:
        return open_file(path)
    except MissingExtraError:
        raise
    except LilliputError as error:
        raise ConfigError(str(error)) from error


def describe_file(path: Path) -> dict[str, Any]:
    """Return the inputs, outputs, size and operations of a file."""
    file = open_executed(path)
    return {
        "file": str(path),
        "bytes": file.bytes,
        "runtime": file.runtime,
        "tensors": [tensor.to_dict() for tensor in file.tensors()],
        "operations": file.operations(),
    }


def open_all(
    names: Sequence[str], sources: Sources, trust: bool = False
) -> tuple[list[Any], str, Any]:
    """Return models and files to execute, the models' framework, and inputs that fit all of them.

    Files declare their inputs: without an option, the first one decides.
    """
    opened: list[Any] = []
    framework, example = "numpy", None
    for name in names:
        if is_file(name):
            opened.append(open_executed(name))
        else:
            model, framework, example = open_model(name, sources, trust)
            opened.append(model)
    files = [name for name in names if is_file(name)]
    if example is None and files:
        example = sources.find(framework)
        if example is None:
            example = like_framework(inputs_for(files[0]), framework)
    return opened, framework, require_inputs(example)


def inputs_for(path: str | Path) -> Any:
    """Return random inputs for a file, with 1 for dynamic sizes."""
    import numpy as np

    generator = np.random.default_rng(0)
    found = []
    for tensor in open_executed(path).tensors():
        if tensor.kind == "input":
            shape = [1 if size is None else size for size in tensor.shape]
            found.append(_random(generator, shape, tensor.dtype))
    return found[0] if len(found) == 1 else tuple(found)


def _random(generator: Any, shape: list[int], dtype: str) -> Any:
    if dtype.startswith("float"):
        return generator.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    return generator.integers(0, 2, shape).astype(dtype)


def output_of(model: Any, inputs: Any) -> list[Any]:
    """Return the outputs of a model or opened file as arrays."""
    from lilliput.frameworks.exporting.simulation import to_array
    from lilliput.report.measure import how_to_measure

    return [to_array(x) for x in _leaves(how_to_measure(model).caller(model, inputs)())]


def _leaves(output: Any) -> list[Any]:
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [leaf for part in output for leaf in _leaves(part)]
    return [] if output is None else [output]


def largest_difference(one: list[Any], two: list[Any]) -> float | None:
    """Return the largest difference of any output; None if the shapes differ.

    Examples
    --------
    >>> import numpy as np
    >>> largest_difference([np.zeros(2)], [np.array([0.0, 0.5])])
    0.5
    """
    import numpy as np

    if [x.shape for x in one] != [x.shape for x in two] or not one:
        return None
    pairs = zip(one, two, strict=True)
    return max(float(np.abs(a.astype(np.float64) - b).max(initial=0.0)) for a, b in pairs)
