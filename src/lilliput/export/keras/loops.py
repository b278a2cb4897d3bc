"""Recurrent layers that a file runs as a loop: listed in float, with their costs from the model.

Neither converter recognizes Keras' recurrent layers once their weights are quantized: they become a loop
over steps with a separate graph as its body, which no runtime computes on integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lilliput.export.keras.scopes import layer_of
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.layer import Layer
from lilliput.frameworks.exporting.simulation import Inputs

_REASON = "it runs as a loop, for which runtimes have no integer kernel"


def loop_layers(
    names: Iterable[str], model: Any, inputs: Inputs, kernel: str, is_open: bool
) -> list[Layer]:
    """Return the recurrent layers among the loops of a file.

    Parameters
    ----------
    names : iterable of str
        The names of the loops, or of their outputs, in the file.
    model, inputs
        The model and its inputs.
    kernel : str
        The kernel that the runtime executes.
    is_open : bool
        Whether the file accepts batches of any size, so that costs are those of one example.
    """
    named = list(dict.fromkeys(names))
    if not named:
        return []
    rows, works = part_of("keras", "export.recurrent").recurrent_work(model, inputs)
    paths = sorted(works, key=lambda path: -path.count("/"))
    rows = max(rows or 1, 1) if is_open else 1
    layers = []
    for path in dict.fromkeys(layer_of(f"{name}/", paths) for name in named):
        if path:
            work = works[path]
            macs = work.macs // rows
            layers.append(Layer(path, work.type, "float", macs, kernel=kernel, reason=_REASON))
    return layers
