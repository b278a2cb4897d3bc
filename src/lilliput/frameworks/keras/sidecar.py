"""The sidecar of a layer: its wrappers, and how they change its weights, inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import keras
from keras import ops, tree

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.scopes import replicas
from lilliput.frameworks.keras.variables import raw, tensor_of, to_array
from lilliput.frameworks.wrapping import Masks

if TYPE_CHECKING:
    from lilliput.frameworks.keras.instrument import Collector, Freezer, PreHook, RemoteQuantizer

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
        masks: Masks = []
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


def sidecar_of(layer: Any) -> Sidecar | None:
    """Return the sidecar of a layer, or None."""
    found: Sidecar | None = vars(layer).get(SIDECAR)
    return found


def with_sidecar(layer: Any) -> Sidecar:
    """Return the sidecar of a layer, created if necessary."""
    found: Sidecar = vars(layer).setdefault(SIDECAR, Sidecar())
    return found


def quantizers_in(layers: Iterable[Any]) -> list[Any]:
    """Return the wrappers of quantizers attached to layers."""
    found: dict[int, Any] = {}
    for layer in layers:
        sidecar = sidecar_of(layer)
        if sidecar is not None:
            wrappers = [*sidecar.wrappers, *(other.wrapper for other in sidecar.remote)]
            found |= {id(wrapper): wrapper for wrapper in wrappers if wrapper.order == 1}
    return list(found.values())


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
