"""Copies of models and layers from their configs, with the parts restored that configs do not contain."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import keras

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.shadow import unshadowed

Config = dict[str, Any]


def copy_model(model: Any) -> Any:
    """Return a copy of a model with the same names and values."""
    sync(model)
    try:
        made = keras.models.clone_model(model)
        if not made.built:
            made.build(model.input_shape)
        made.set_weights(model.get_weights())
    except Exception as error:  # configs are the user's code
        raise UnsupportedModelError(
            f"the model cannot be recreated from its config ({type(error).__name__}: {error})"
        ) from error
    return made


def copy_operation(
    old: Any, edit: Callable[[Config], Config], dtype: str | None, known: dict[str, Any]
) -> Any:
    """Return a new layer or operation like an old one.

    Parameters
    ----------
    old : keras.Operation
        The layer or operation to copy.
    edit : callable
        Returns the config of the new one, given that of the old one.
    dtype : str, optional
        Compute in this precision.
    known : dict
        The user's own classes and functions, by name.
    """
    own: Any = unshadowed(type(old))
    is_layer = isinstance(old, keras.Layer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a lambda is harmless if no file is written
            config = edit(old.get_config())
        if dtype is not None and is_layer and "float" in str(old.compute_dtype):
            config["dtype"] = dtype
            for inner in (config.get("layer"), config.get("backward_layer")):  # of a wrapper
                if isinstance(inner, dict):
                    inner["config"]["dtype"] = dtype
        return _make(own, old, config, known)
    except (NotImplementedError, TypeError, ValueError) as error:
        if not is_layer:
            return old  # an operation has no state, and may have many calls
        raise UnsupportedModelError(
            f"layer {old.name!r} ({own.__name__}) cannot be recreated from its get_config(): {error}"
        ) from error


def _make(own: Any, old: Any, config: Config, known: dict[str, Any]) -> Any:
    if isinstance(old, keras.layers.Lambda):
        held = {"name": old.name, "dtype": config["dtype"]}
        return own(old.function, old._output_shape, old.mask, old.arguments, **held)
    activation = getattr(old, "activation", None)
    is_own = isinstance(activation, FunctionType) and _is_foreign(activation)
    if is_own and "activation" in config:
        config = {**config, "activation": None}
    with keras.saving.custom_object_scope(known):
        new = own.from_config(config)
    if is_own and "activation" in config:
        new.activation = activation
    return new


def custom_objects(model: Any) -> dict[str, Any]:
    """Return the classes and functions used by the layers of a model, except those of Keras, by name."""
    found = {}
    for layer in model._flatten_layers():
        for value in (layer, *vars(layer).values()):
            named = value if isinstance(value, (FunctionType, type)) else unshadowed(type(value))
            if _is_foreign(named):
                found[named.__name__] = named
    return found


def _is_foreign(named: Any) -> bool:
    return named.__module__.partition(".")[0] not in ("keras", "builtins", "collections", "numpy")
