"""The weights of a Keras model, as its layers compute with them."""

from __future__ import annotations

from typing import Any

from lilliput.errors import UnsupportedModelError
from lilliput.export.keras.litert.weights import Known
from lilliput.export.places import Simulation, to_array
from lilliput.frameworks.keras.discover import discover


def known_weights(model: Any, simulation: Simulation) -> list[Known]:
    """Return every weight of a model with two axes or more: those of quantizers, then the others."""
    places = [place for place in simulation.places if place.is_weight]
    found = [Known(place.wrapper.name, place.weight(), place) for place in places]
    taken = {id(place.wrapper.module) for place in places}
    try:
        layers = discover(model)
    except UnsupportedModelError:  # a layer that is never called is not built
        return found
    for layer in layers:
        if layer.weight_name is not None and len(layer.shape) > 1 and id(layer.module) not in taken:
            weight = to_array(getattr(layer.module, layer.weight_name))
            found.append(Known(layer.name, weight))
    return found
