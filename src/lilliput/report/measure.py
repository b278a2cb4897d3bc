"""Measure a model or an exported file: its content, its costs, and its latency here.

>>> import torch
>>> figures = measure(torch.nn.Linear(4, 2), torch.randn(8, 4), runs=3)
>>> figures.parameters, figures.macs, figures.bytes
(10, 8, 40)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lilliput.export.targets.executed import ExecutedFile, open_file
from lilliput.export.targets.measured import MeasuredFile
from lilliput.measure.receipt import Figures
from lilliput.measure.timing import (
    Measured,
    how_to_measure_model,
    measure_opened,
    run_evaluation,
)


def measure(
    model_or_path: Any,
    inputs: Any,
    *,
    evaluate: Callable[[Any], float] | None = None,
    name: str = "",
    runs: int = 50,
    compact: bool = False,
) -> Figures:
    """Count the parameters of a model or file, and time it.

    Parameters
    ----------
    model_or_path : torch.nn.Module, keras.Model, str or path-like
        A model, compressed or not, or a file that ends in ``.onnx`` or ``.tflite``.
    inputs : tensor, tuple or dict
        Inputs of the model.
    evaluate : callable, optional
        ``evaluate(model)`` returns the metric, where higher is better. A file is passed as an object
        that is called like the model.
    name : str
        Its name in a receipt.
    runs : int
        The largest number of timed calls; 0 for none.
    compact : bool
        Whether to determine the size of the weights after ``save(model, path, compact=True)``.
    """
    found = measure_all([model_or_path], inputs, evaluate=evaluate, names=[name], runs=runs)[0]
    if not compact or isinstance(model_or_path, (str, os.PathLike)):
        return found
    from lilliput.compact.saving import to_bytes

    return replace(found, coded=len(to_bytes(model_or_path, compact=True)))


def measure_all(
    models: Sequence[Any],
    inputs: Any,
    *,
    evaluate: Callable[[Any], float] | None = None,
    names: Sequence[str] = (),
    runs: int = 50,
) -> list[Figures]:
    """Measure several models or files; their calls alternate, so that all have the same conditions."""
    opened = [open_file(x) if isinstance(x, (str, os.PathLike)) else x for x in models]
    titles = [(names[i] if names else "") or _title(x) for i, x in enumerate(opened)]
    found = measure_opened([(x, how_to_measure(x)) for x in opened], inputs, titles, runs)
    if evaluate is None:
        return found
    pairs = zip(opened, found, strict=True)
    return [replace(figures, metric=run_evaluation(evaluate, model)) for model, figures in pairs]


def _title(model: Any) -> str:
    return model.path.name if isinstance(model, ExecutedFile) else type(model).__name__


def how_to_measure(model: Any) -> Measured:
    """Return how a model or an opened file is counted and called."""
    if isinstance(model, ExecutedFile):
        return MeasuredFile(model)
    return how_to_measure_model(model)
