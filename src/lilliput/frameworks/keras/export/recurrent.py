"""Costs of the recurrent layers of a Keras model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras

from lilliput.frameworks.exporting.simulation import Inputs
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.snapshot import watch
from lilliput.frameworks.work import Work


def recurrent_work(model: Any, inputs: Inputs) -> tuple[int | None, dict[str, Work]]:
    """Return the batch size, and the multiplications of each recurrent layer under all its paths."""
    args = inputs[0]
    rows, works = watch(model, args[0] if len(args) == 1 else list(args), timing=False)
    found = {}
    for path, layer in layers_by_path(model).items():
        if isinstance(layer, keras.layers.RNN) and id(layer.cell) in works:
            kind = unshadowed(type(layer)).__name__
            found[path] = replace(works[id(layer.cell)], path=path, type=kind)
    return rows, found
