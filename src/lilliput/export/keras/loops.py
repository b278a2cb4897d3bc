"""Recurrent layers that a file runs as a loop: listed in float, with what the model says they cost.

Neither converter knows Keras' recurrent layers once their weights are quantized: they become a loop over
steps whose body is a graph of its own, which no runtime computes on integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from lilliput.export.keras.scopes import layer_of
from lilliput.export.layer import Layer
from lilliput.export.places import Inputs
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.instrument import unshadowed

_REASON = "it runs as a loop, for which runtimes have no integer kernel"


def loop_layers(
    names: Iterable[str], model: Any, inputs: Inputs, kernel: str, is_open: bool
) -> list[Layer]:
    """Return the recurrent layers among the loops of a file.

    Parameters
    ----------
    names : iterable of str
        The names that the loops, or what they return, have in the file.
    model, inputs
        The model, and what it is called with.
    kernel : str
        What the runtime executes.
    is_open : bool
        Whether the file takes batches of any size, so that costs are those of one example.
    """
    named = list(dict.fromkeys(names))
    if not named:
        return []
    from lilliput.frameworks.keras.snapshot import watch

    every = layers_by_path(model).items()
    found = {path: layer for path, layer in every if isinstance(layer, keras.layers.RNN)}
    paths = sorted(found, key=lambda path: -path.count("/"))
    args = inputs[0]
    rows, works = watch(model, args[0] if len(args) == 1 else list(args), timing=False)
    rows = max(rows or 1, 1) if is_open else 1
    layers = []
    for path in dict.fromkeys(layer_of(f"{name}/", paths) for name in named):
        if path:
            work = works[id(found[path].cell)]
            kind = unshadowed(type(found[path])).__name__
            layers.append(
                Layer(path, kind, "float", work.macs // rows, kernel=kernel, reason=_REASON)
            )
    return layers
