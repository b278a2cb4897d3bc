"""NNI's classes for TensorFlow, 1.8 to 2.10, on Keras 3 models, without importing a framework.

They accepted models that are not built yet, and authors wrote ``calc_masks``, which returns masks by the
names of variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from lilliput.compat.nni.classes.older_names import OlderNames
from lilliput.compat.nni.config.failures import as_schema_errors
from lilliput.compat.nni.config.rules import in_total
from lilliput.core.compressor import Compressor
from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError
from lilliput.pruning.slim import SlimPruner

_OURS = "lilliput_"  # prefix of the names of variables that are not the layer's own


class KerasForm(OlderNames):
    """The common part: a model is analysed once it is built."""

    _is_ready: bool = True

    def __init__(
        self, model: Any = None, config_list: Any = None, *rest: Any, **named: Any
    ) -> None:
        self._is_ready = getattr(model, "built", True)
        with as_schema_errors():
            super().__init__(model, config_list, *rest, **named)
        self._is_ready = True

    def _bind(self) -> None:
        if self._is_ready:
            with as_schema_errors():
                super()._bind()

    @property
    def compressed_model(self) -> Any:
        """The model, which is compressed in place."""
        return self.bound_model

    @property
    def wrappers(self) -> list[Any]:
        """The wrappers, one per selected layer, with ``layer`` and ``masks``."""
        return [LayerWrapper(wrapper) for wrapper in self.get_modules_wrapper()]


class KerasPruner(KerasForm, Pruner):
    """Base class of pruners: override ``calc_masks``."""

    def calc_masks(self, wrapper: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return masks by the names of the layer's variables, or None to keep them."""
        raise NotImplementedError(f"{type(self).__name__} must override calc_masks().")

    def calc_mask(self, wrapper: Any, wrapper_idx: int | None = None) -> Any:
        """Return the result of :meth:`calc_masks`, for the weight and the bias."""
        masks = self.calc_masks(LayerWrapper(wrapper), wrapper_idx=wrapper_idx)
        return None if masks is None else _by_role(type(self).__name__, wrapper, masks)

    def _is_asked_by_layer(self) -> bool:
        return True  # calc_masks is the name of another method now


class KerasSlimPruner(KerasForm, SlimPruner):
    """Mask the batch-norm scales that are smallest over all layers, at ``compress()``."""

    backends = ("keras",)
    filters_only = True

    def __init__(self, model: Any = None, config_list: Any = None, **named: Any) -> None:
        super().__init__(model, in_total(config_list), **named)


class LayerWrapper:
    """A layer under a pruner in NNI's form: ``layer``, ``masks``, ``config`` and own attributes."""

    def __init__(self, wrapper: Any) -> None:
        self.__dict__["_wrapper"] = wrapper

    @property
    def layer(self) -> Any:
        """The layer, without the pruner's variables."""
        return _Layer(self._wrapper.module)

    @property
    def masks(self) -> dict[str, Any]:
        """The active masks, by the names of variables."""
        held = _variables(self._wrapper)
        masks = {role: getattr(self._wrapper, f"{role}_mask") for role in held}
        return {held[role].name: mask for role, mask in masks.items() if mask is not None}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapper, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._wrapper, name, value)


class _Layer:
    """A layer that lists its own variables only."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # so that isinstance() sees the layer
        return type(self._layer)

    @property
    def weights(self) -> list[Any]:
        return [v for v in self._layer.weights if not v.name.startswith(_OURS)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _variables(wrapper: Any) -> dict[str, Any]:
    """Return the variables that a pruner masks, by their role."""
    layer, owner = wrapper.module, wrapper.layer_info.owners[0]
    named = {v.name: v for v in layer.weights}
    roles = {"weight": owner.weight_name, "bias": owner.bias_name}
    return {role: named[name] for role, name in roles.items() if name in named}


def _by_role(title: str, wrapper: Any, masks: Mapping[str, Any]) -> dict[str, Any]:
    """Return masks by role; a variable may be called ``kernel``, ``conv1/kernel`` or ``kernel:0``."""
    if not isinstance(masks, Mapping):
        raise AlgorithmError(
            f"{title}.calc_masks returned a {type(masks).__name__} for layer {wrapper.name!r}; expected "
            "a dict of masks by the names of variables."
        )
    held = _variables(wrapper)
    names = {name: role for role, v in held.items() for name in (v.name, v.path)}
    found = {}
    for name, mask in masks.items():
        role = names.get(str(name).removesuffix(":0"))
        if role is None:
            raise AlgorithmError(
                f"{title}.calc_masks returned a mask for {name!r} in layer {wrapper.name!r}; expected "
                f"names among {', '.join(repr(v.name) for v in held.values())}."
            )
        found[f"{role}_mask"] = mask
    return found


@cache
def in_keras_form(found: type) -> type:
    """Return a current class in the form of NNI 1.8 to 2.10 for TensorFlow."""
    if found is Pruner:
        return KerasPruner
    if not issubclass(found, Compressor) or found is SlimPruner:
        return KerasSlimPruner if found is SlimPruner else found
    members = {"__module__": found.__module__, "__doc__": found.__doc__, "adapts": found}
    return type(found.__name__, (KerasForm, found), members)
