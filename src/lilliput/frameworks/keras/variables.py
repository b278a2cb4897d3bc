"""Raw variables: where a layer stores them, and how to read and write their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

OURS = "lilliput_"  # prefix of the names of our variables

# Attributes that belong to another attribute of the layer, which is the weight.
_BIASES = {"kernel": "bias", "gamma": "beta", "pointwise_kernel": "bias"}


def read(variable: Any) -> Any:
    """Return what algorithms use: the variable itself, or on torch the tensor in it.

    A torch tensor can be changed in place, and supports the functions of torch.
    """
    return variable.value if keras.backend.backend() == "torch" else variable


def tensor_of(value: Any) -> Any:
    """Return a value as a tensor; a variable is read now, which Keras leaves to TensorFlow."""
    tensor = value.value if isinstance(value, keras.Variable) else ops.convert_to_tensor(value)
    return tensor.value() if hasattr(tensor, "read_value") else tensor


def to_array(value: Any) -> Any:
    """Return a variable or a tensor as a NumPy array (a copy)."""
    if isinstance(value, keras.Variable):
        value = tensor_of(value)
    if keras.backend.backend() == "torch" and hasattr(value, "detach"):
        value = value.detach()
    return np.array(ops.convert_to_numpy(value))


def raw(layer: Any, name: str) -> Any:
    """Return the variable behind an attribute of a layer, or None."""
    held = vars(layer).get(name, vars(layer).get(f"_{name}"))
    return held if isinstance(held, keras.Variable) else None


def own_variables(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield a layer's own trained variables by attribute, except those of a compressor."""
    hidden = {id(variable) for variable in vars(layer).get("_lilliput_variables", ())}
    trained = {id(v) for v in layer._trainable_variables} - hidden
    seen = set()
    for key, value in list(vars(layer).items()):
        if isinstance(value, keras.Variable) and id(value) in trained and id(value) not in seen:
            seen.add(id(value))
            public = key.lstrip("_")
            yield (public if hasattr(type(layer), public) else key), value


def bias_of(layer: Any, weight: str) -> str | None:
    """Return the attribute of the bias that belongs to a weight, or None."""
    name = _BIASES.get(weight)
    return name if name is not None and raw(layer, name) is not None else None


def is_bias(name: str) -> bool:
    """Whether an attribute is a bias instead of a weight."""
    return name in _BIASES.values()


def track(layer: Any, variable: Any) -> None:
    """Add a variable to a built layer, hidden from its files."""
    hidden = vars(layer).setdefault("_lilliput_variables", [])
    if any(variable is other for other in hidden):
        return
    hidden.append(variable)
    layer._tracker.unlock()
    layer._track_variable(variable)
    layer._tracker.lock()


def untrack(layer: Any, variable: Any) -> None:
    """Undo :func:`track`."""
    held = vars(layer).get("_lilliput_variables", [])
    remaining = [other for other in held if other is not variable]
    if len(remaining) < len(held):
        layer._untrack_variable(variable)
        vars(layer)["_lilliput_variables"] = remaining
    if not remaining:
        vars(layer).pop("_lilliput_variables", None)


def forget_in_torch(model: Any) -> None:
    """Remove deleted variables of ours from the lists that Keras on torch keeps for each layer."""
    for layer in (model, *model._flatten_layers(include_self=False)):
        listed = vars(layer).get("_modules", {}).get("_torch_params", {})
        held = {variable.path for variable in layer.variables}
        for path in [p for p in listed if p.startswith(OURS) and p not in held]:
            listed.pop(path)


def raw_weight(wrapper: Any) -> Any:
    """Return the variable of a wrapper's weight."""
    return raw(wrapper.module, str(wrapper.layer_info.weight_name))
