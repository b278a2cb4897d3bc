"""How masks and fake quantization are applied to a layer: by a shadow class and a sidecar.

The raw variable keeps its place and name in the layer. The layer's class is replaced by a cached
subclass of the same name, on which the attribute (``kernel``) returns the compressed value, and whose
``call`` quantizes inputs and outputs. Wrappers are stored in the sidecar, an attribute of the layer;
their variables are non-trainable variables of the layer that are excluded from its files. So a saved model is
a plain one that loads without this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lilliput.frameworks.keras.shadow import shadow_class, unshadowed
from lilliput.frameworks.keras.sidecar import SIDECAR, with_sidecar
from lilliput.frameworks.keras.variables import track, untrack
from lilliput.frameworks.wrapping import check_rivals

Tensor = Any


class Handle:
    """An addition to a layer that can be removed."""

    kind: str
    layer: Any

    def add_to(self, layer: Any) -> Any:
        """Add it to a layer."""
        self.layer = layer
        getattr(with_sidecar(layer), self.kind).append(self)
        update(layer)
        return self

    def remove(self) -> None:
        """Remove it; a second call has no effect."""
        sidecar = vars(self.layer).get(SIDECAR)
        held = getattr(sidecar, self.kind, [])
        if self in held:
            held.remove(self)
            update(self.layer)


class RemoteQuantizer(Handle):
    """Quantizes the output of a layer for another layer."""

    kind = "remote"

    def __init__(self, wrapper: Any, role: str) -> None:
        self.wrapper = wrapper
        self.role = role

    def quantize(self, tensor: Tensor) -> Tensor:
        """Quantize one tensor like the layer's own."""
        if self.role == "output":
            return self.wrapper.quantize_output(tensor)
        return self.wrapper.quantize_inputs((tensor,))[0]


class Collector(Handle):
    """Calls a user's function with the inputs and outputs of a layer."""

    kind = "collectors"

    def __init__(self, wrapper: Any, function: Callable[..., Any]) -> None:
        self.wrapper = wrapper
        self.function = function


class Freezer(Handle):
    """Makes a batch norm use its running statistics in training."""

    kind = "freezers"


class PreHook(Handle):
    """Calls a function with the inputs of a layer before each call."""

    kind = "pre_hooks"

    def __init__(self, function: Callable[[Any, dict[str, Any]], None]) -> None:
        self.function = function


def attach(layer: Any, wrapper: Any, weight: str | None, bias: str | None) -> None:
    """Make a wrapper transform attributes of a layer."""
    sidecar = with_sidecar(layer)
    check_rivals(wrapper, sidecar.wrappers)
    sidecar.add(wrapper, weight, bias)
    for variable in wrapper.variables():
        track(layer, variable)
    wrapper.__dict__["_is_attached"] = True
    update(layer)


def detach(layer: Any, wrapper: Any) -> None:
    """Undo :func:`attach`."""
    vars(layer)[SIDECAR].drop(wrapper)
    for variable in wrapper.variables():
        untrack(layer, variable)
    wrapper.__dict__["_is_attached"] = False
    update(layer)


def update(layer: Any) -> None:
    """Update the class of a layer to match its sidecar, which is removed when empty."""
    sidecar = vars(layer)[SIDECAR]
    base = unshadowed(type(layer))
    if sidecar.is_empty:
        del vars(layer)[SIDECAR]
        object.__setattr__(layer, "__class__", base)
    else:
        object.__setattr__(layer, "__class__", shadow_class(base, tuple(sorted(sidecar.chains))))
