"""How masks and fake quantization are applied to a layer: by a shadow class and a sidecar.

The raw variable keeps its place and name in the layer. The layer's class is replaced by a cached
subclass of the same name, on which the attribute (``kernel``) returns the compressed value, and whose
``call`` quantizes inputs and outputs. Wrappers are stored in the sidecar, an attribute of the layer;
their variables are non-trainable variables of the layer that are excluded from its files. So a saved model is
a plain one that loads without this package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Any

import keras
from keras import ops, tree
from keras.src.saving import object_registration

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.computed import ComputedVariable
from lilliput.frameworks.keras.scopes import (
    full_precision,
    is_calling,
    is_symbolic,
    is_tracing,
    replicas,
)
from lilliput.frameworks.keras.variables import raw, tensor_of, to_array, track, untrack
from lilliput.frameworks.wrapping import check_rivals

SIDECAR = "_lilliput"
Tensor = Any


class Sidecar:
    """The wrappers of one layer, and which of its attributes each of them changes."""

    def __init__(self) -> None:
        self.wrappers: list[Any] = []
        self.chains: dict[str, list[tuple[Any, str]]] = {}  # attribute -> [(wrapper, role)]
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.remote: list[RemoteQuantizer] = []  # for other layers
        self.collectors: list[Collector] = []
        self.freezers: list[Freezer] = []
        self.pre_hooks: list[PreHook] = []
        self.taps: list[Any] = []  # see effects
        self.narrow: Any = None  # makes a norm run on kept channels alone
        self.is_bare = False  # attributes temporarily return raw variables

    @property
    def is_empty(self) -> bool:
        """Whether the sidecar is no longer needed."""
        held = (
            self.wrappers,
            self.remote,
            self.collectors,
            self.freezers,
            self.pre_hooks,
            self.taps,
        )
        return not any(held) and self.narrow is None

    def add(self, wrapper: Any, weight: str | None, bias: str | None) -> None:
        """Add a wrapper at its position in the chains."""
        self.wrappers.append(wrapper)
        for attribute, role in ((weight, "weight"), (bias, "bias")):
            if attribute is not None and role in wrapper.roles:
                chain = [*self.chains.get(attribute, []), (wrapper, role)]
                self.chains[attribute] = sorted(chain, key=lambda link: int(link[0].order))
        self.keep_quantizers(wrapper, wrapper.roles)

    def drop(self, wrapper: Any) -> None:
        """Remove a wrapper."""
        self.wrappers.remove(wrapper)
        chains = {a: [x for x in chain if x[0] is not wrapper] for a, chain in self.chains.items()}
        self.chains = {attribute: chain for attribute, chain in chains.items() if chain}
        self.keep_quantizers(wrapper, ())

    def keep_quantizers(self, wrapper: Any, roles: Collection[str]) -> None:
        """Quantize a wrapper's input and output here only if ``roles`` names them."""
        for role, held in (("input", self.inputs), ("output", self.outputs)):
            # A layer with several weights has several wrappers, but its activations are quantized
            # once.
            is_done = any(x.compressor is wrapper.compressor for x in held if x is not wrapper)
            if role in roles and wrapper not in held and not is_done:
                held.append(wrapper)
            elif role not in roles and wrapper in held:
                held.remove(wrapper)

    def transform(self, attribute: str, value: Tensor) -> Tensor:
        """Return the compressed value of an attribute."""
        masks: list[Tensor] = []
        for wrapper, role in self.chains.get(attribute, ()):
            value = wrapper.transform(role, value, masks)
        return value

    def pruned(self, attribute: str, value: Tensor) -> Tensor:
        """Return an attribute with all pruners applied, before any quantizer."""
        for wrapper, role in self.chains.get(attribute, ()):
            value = value if wrapper.order == 1 else wrapper.transform(role, value, [])
        return value

    def zero_pruned(self, layer: Any) -> None:
        """Set the masked entries of the layer's raw variables to zero."""
        for attribute, chain in self.chains.items():
            if any(wrapper.keeps_raw(role) for wrapper, role in chain):
                continue
            mask, variable = mask_of(layer, attribute), raw(layer, attribute)
            if mask is not None and not mask.all():
                variable.assign(variable * ops.cast(mask, variable.dtype))

    def run(self, call: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call the layer, with its inputs and outputs quantized."""
        for pre_hook in self.pre_hooks:
            pre_hook.function(args, kwargs)
        if self.freezers and kwargs.get("training"):
            kwargs = {**kwargs, "training": False}
        if self.inputs:
            args, kwargs = self._quantize_inputs(args, kwargs)
        for tap in self.taps:
            args = tap.before(args)
        output = call(*args, **kwargs)
        for tap in self.taps:
            output = tap.after(output)
        for wrapper in self.outputs:
            output = _map_floating(output, wrapper.quantize_output, wrapper, "output")
        for other in self.remote:
            output = _map_floating(output, other.quantize, other.wrapper, other.role)
        for collector in self.collectors:
            _expect_one_replica(collector.wrapper)
            collector.function(collector.wrapper, args, output)
        return output

    def _quantize_inputs(self, args: Any, kwargs: dict[str, Any]) -> Any:
        named = {key: value for key, value in kwargs.items() if "mask" not in key}
        flat = tree.flatten((args, named))
        where = [i for i, x in enumerate(flat) if is_floating(x)]
        _expect(self.inputs[0], bool(where), "input")
        # Attention may be called with one tensor three times, which must stay a single tensor.
        tensors = tuple({id(flat[i]): flat[i] for i in where}.values())
        identities = [id(x) for x in tensors]
        for wrapper in self.inputs:
            tensors = wrapper.quantize_inputs(tensors)
        quantized = dict(zip(identities, tensors, strict=True))
        packed = [quantized.get(id(x), x) for x in flat]
        args, named = tree.pack_sequence_as((args, named), packed)
        return args, {**kwargs, **named}


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


def quantizers_in(layers: Iterable[Any]) -> list[Any]:
    """Return the wrappers of quantizers attached to layers."""
    found: dict[int, Any] = {}
    for layer in layers:
        sidecar = sidecar_of(layer)
        if sidecar is not None:
            wrappers = [*sidecar.wrappers, *(other.wrapper for other in sidecar.remote)]
            found |= {id(wrapper): wrapper for wrapper in wrappers if wrapper.order == 1}
    return list(found.values())


def sidecar_of(layer: Any) -> Sidecar | None:
    """Return the sidecar of a layer, or None."""
    found: Sidecar | None = vars(layer).get(SIDECAR)
    return found


def mask_of(layer: Any, name: str) -> Any:
    """Return the combined mask of all pruners on an attribute as a NumPy array, or None."""
    sidecar = sidecar_of(layer)
    mask = None
    for wrapper, role in sidecar.chains.get(name, ()) if sidecar is not None else ():
        held = getattr(wrapper, f"{role}_mask", None)
        if held is not None:
            mask = to_array(held) if mask is None else mask * to_array(held)
    return mask


def computed_in(model: Any) -> dict[int, Any]:
    """Return the weights that pruners compute from trained raw ones, by identity of the raw variable."""
    found = {}
    for layer in model._flatten_layers():
        sidecar = sidecar_of(layer)
        for attribute, chain in sidecar.chains.items() if sidecar is not None else ():
            if any(wrapper.keeps_raw(role) for wrapper, role in chain):
                variable = raw(layer, attribute)
                found[id(variable)] = sidecar.pruned(attribute, tensor_of(variable))  # type: ignore[union-attr]
    return found


def unshadowed(cls: type) -> type:
    """Return the class that a shadow class was made from, or the class itself."""
    base: type = cls.__dict__.get("_lilliput_base", cls)
    return base


def update(layer: Any) -> None:
    """Update the class of a layer to match its sidecar, which is removed when empty."""
    sidecar = vars(layer)[SIDECAR]
    base = unshadowed(type(layer))
    if sidecar.is_empty:
        del vars(layer)[SIDECAR]
        object.__setattr__(layer, "__class__", base)
    else:
        object.__setattr__(layer, "__class__", shadow_class(base, tuple(sorted(sidecar.chains))))


@cache
def shadow_class(base: Any, names: tuple[str, ...]) -> type:
    """Return the subclass of ``base`` on which ``names`` are compressed attributes."""
    members: dict[str, Any] = {name: Shadow(base, name) for name in names}
    members |= {
        "call": _make_call(base),
        "save_own_variables": _without_ours(base.save_own_variables),
        "load_own_variables": _without_ours(base.load_own_variables),
        "weights": property(_plain_weights),
    }
    return subclass_like(base, members)


def subclass_like(base: Any, members: dict[str, Any]) -> type:
    """Return a subclass that Keras treats as its base, in files and when it creates new layers."""
    own = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "from_config": classmethod(lambda cls, *args, **kwargs: base.from_config(*args, **kwargs)),
        "_lilliput_base": base,
    }
    cls = type(base.__name__, (base,), {**members, **own})
    names = object_registration.GLOBAL_CUSTOM_NAMES
    if base in names:
        names[cls] = names[base]
    return cls


class Shadow:
    """An attribute that returns the compressed value of a variable."""

    def __init__(self, base: type, name: str) -> None:
        self.name = name
        self.plain = getattr(base, name, None)  # the property of the class, if any

    def __get__(self, layer: Any, owner: type | None = None) -> Any:
        if layer is None:
            return self
        sidecar = sidecar_of(layer)
        variable = raw(layer, self.name)
        if sidecar is None or sidecar.is_bare or variable is None or is_symbolic():
            return self._raw(layer)

        def compute() -> Tensor:
            with full_precision() as dtype:
                value = sidecar.transform(self.name, tensor_of(variable))
            return value if dtype is None else ops.cast(value, dtype)

        return compute() if is_calling() or is_tracing() else ComputedVariable(variable, compute)

    def _raw(self, layer: Any) -> Any:
        if isinstance(self.plain, property) and self.plain.fget is not None:
            return self.plain.fget(layer)
        if self.name in vars(layer):
            return vars(layer)[self.name]
        raise AttributeError(f"{type(layer).__name__} has no attribute {self.name!r}")

    def __set__(self, layer: Any, value: Any) -> None:
        if isinstance(self.plain, property):
            if self.plain.fset is None:
                raise AttributeError(f"{self.name!r} of {type(layer).__name__} cannot be set")
            self.plain.fset(layer, value)
        else:
            vars(layer)[self.name] = value


def _make_call(base: Any) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        sidecar = sidecar_of(self)
        if sidecar is None or is_symbolic():
            return base.call(self, *args, **kwargs)
        narrow = sidecar.narrow
        plain = base.call if narrow is None else narrow.call
        return sidecar.run(lambda *a, **k: plain(self, *a, **k), args, kwargs)

    call.__signature__ = inspect.signature(base.call)  # type: ignore[attr-defined]
    return call


def _plain_weights(self: Any) -> list[Any]:
    """Return the variables of ``get_weights`` and ``set_weights``, without ours."""
    hidden = {id(variable) for variable in vars(self).get("_lilliput_variables", ())}
    return [x for x in super(type(self), self).weights if id(x) not in hidden]


def _without_ours(method: Any) -> Callable[..., Any]:
    """Save or load a layer's raw variables, with pruned entries at zero, without our variables."""

    def call(self: Any, *args: Any) -> Any:
        sidecar = sidecar_of(self)
        hidden = list(vars(self).get("_lilliput_variables", ()))
        if sidecar is None:
            return method(self, *args)
        sidecar.zero_pruned(self)
        sidecar.is_bare = True
        for variable in hidden:
            untrack(self, variable)
        try:
            return method(self, *args)
        finally:
            for variable in hidden:
                track(self, variable)
            sidecar.is_bare = False
            sidecar.zero_pruned(self)

    return call


def is_floating(value: Any) -> bool:
    """Whether a value is a tensor of floating-point numbers."""
    return ops.is_tensor(value) and "float" in str(keras.backend.standardize_dtype(value.dtype))


def _map_floating(
    output: Any, function: Callable[[Tensor], Tensor], wrapper: Any, what: str
) -> Any:
    flat = tree.flatten(output)
    _expect(wrapper, any(is_floating(x) for x in flat), what)
    return tree.pack_sequence_as(output, [function(x) if is_floating(x) else x for x in flat])


def _expect(wrapper: Any, is_there: bool, what: str) -> None:
    if not is_there:
        raise UnsupportedModelError(
            f"layer {wrapper.name!r}: its {what} has no floating-point tensor that could be quantized; "
            "remove it from quant_types."
        )


def _expect_one_replica(wrapper: Any) -> None:
    if replicas() > 1:
        raise UnsupportedModelError(
            f"layer {wrapper.name!r}: its activations are collected, but {replicas()} devices train "
            "together and each sees only part of a batch; train on one device, or calibrate."
        )


def with_sidecar(layer: Any) -> Sidecar:
    """Return the sidecar of a layer, created if necessary."""
    found: Sidecar = vars(layer).setdefault(SIDECAR, Sidecar())
    return found
