"""The variables of a Keras model by name: ``'block/conv1.kernel'``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.sidecar import mask_of
from lilliput.frameworks.keras.variables import raw, to_array
from lilliput.graph.labels import Flags

Array = Any


class Tensors:
    """Variables of the layers of a model, each under the first of its names."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers: dict[str, Any] = {}  # each layer under its first path
        self.paths: dict[int, str] = {}
        for path, layer in layers_by_path(model).items():
            if id(layer) not in self.paths:
                self.layers[path] = layer
                self.paths[id(layer)] = path
        self.names: dict[int, str] = {}
        self.variables: dict[str, Any] = {}
        self.trained: set[str] = set()
        for path, layer in self.layers.items():
            self._enter(path, layer)

    def _enter(self, path: str, layer: Any) -> None:
        trained = {id(variable) for variable in layer._trainable_variables}
        for attribute, variable in variables_of(layer):
            if id(variable) not in self.names:
                name = self.names[id(variable)] = f"{path}.{attribute}"
                self.variables[name] = variable
                if id(variable) in trained:
                    self.trained.add(name)

    def find(self, layer: Any, attribute: str) -> tuple[str, tuple[int, ...]] | None:
        """Return name and shape of a variable of a layer, or None if it has none of that name."""
        variable = raw(layer, attribute)
        if variable is None or id(variable) not in self.names:
            return None
        return self.names[id(variable)], tuple(variable.shape)

    def masks(self) -> dict[str, Flags]:
        """Return the kept entries of pruned variables; others have no mask."""
        found: dict[str, Flags] = {}
        for layer in self.layers.values():
            for attribute, variable in variables_of(layer):
                mask = mask_of(layer, attribute)
                if mask is not None:
                    name = self.names[id(variable)]
                    found[name] = found.get(name, True) & (np.asarray(mask) != 0)
        return found

    def arrays(self, masks: Mapping[str, Flags]) -> dict[int, Array]:
        """Return the values of all variables with masks applied, by identity."""
        found = {id(v): to_array(v) for v in unhidden(self.model)}
        for name, mask in masks.items():
            found[id(self.variables[name])][~mask] = 0
        return found


def shapes_of(tensors: Tensors) -> dict[str, list[int]]:
    """Return names and shapes of a model's variables."""
    return {name: [int(n) for n in x.shape] for name, x in tensors.variables.items()}


def variables_of(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield a layer's own variables by attribute, except those of a compressor."""
    hidden = {id(variable) for variable in vars(layer).get("_lilliput_variables", ())}
    seen = set(hidden)
    for key, value in list(vars(layer).items()):
        if isinstance(value, keras.Variable) and id(value) not in seen:
            seen.add(id(value))
            public = key.lstrip("_")
            yield (public if hasattr(type(layer), public) else key), value


def unhidden(layer: Any) -> list[Any]:
    """Return all variables of a layer or model, except those of a compressor."""
    hidden = {
        id(variable)
        for inner in layer._flatten_layers()
        for variable in vars(inner).get("_lilliput_variables", ())
    }
    return [variable for variable in layer.variables if id(variable) not in hidden]
