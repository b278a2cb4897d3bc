"""The sidecar: a child module with the wrappers of a module, which compute its compressed weights.

A masked Parameter stores its zeros itself. Whenever it is read, masked entries are set to zero in
place, and a hook masks its gradient; so the module exposes the Parameter itself, and whatever is
written to it persists. Where nothing may be changed in place (compiled, traced and transformed code),
and where a quantizer follows, the value is computed instead.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, nn

from lilliput.frameworks.torch.computed import protect
from lilliput.frameworks.torch.weights import zero_
from lilliput.frameworks.wrapping import Masks

SIDECAR = "lilliput"


def is_ours(name: str) -> bool:
    """Whether an entry of a state dict belongs to a compressor."""
    return SIDECAR in name.split(".")


class _Computing(threading.local):
    """Which attributes of which sidecars a thread is computing; replicas run in separate threads."""

    def __init__(self) -> None:
        self.marks: set[tuple[int, str]] = set()


_computing = _Computing()


class Sidecar(nn.Module):
    """The wrappers of one module, and which of its attributes each of them changes."""

    def __init__(self) -> None:
        super().__init__()
        self.chains: dict[str, list[tuple[str, str]]] = {}  # attribute -> [(child, role)]
        self.held: dict[str, HeldParameter] = {}  # attribute -> Parameter that stores its zeros
        self.input_keys: list[str] = []
        self.output_keys: list[str] = []
        self.narrow: Any = None  # makes a norm run on kept channels alone

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own Parameters, which its module holds.
        return {**self.__dict__, "held": {}}

    def add(self, wrapper: Any, weights: Iterable[str], biases: Iterable[str]) -> None:
        """Add a wrapper at its position in the chains of the attributes it changes."""
        key = next(str(i) for i in range(len(self._modules) + 1) if str(i) not in self._modules)
        self._modules[key] = wrapper
        for attributes, role in ((weights, "weight"), (biases, "bias")):
            for attribute in attributes if role in wrapper.roles else ():
                chain = [*self.chains.get(attribute, []), (key, role)]
                chain.sort(key=self._order)
                self.chains[attribute] = chain
        for role, keys in (("input", self.input_keys), ("output", self.output_keys)):
            # A module with several weights has several wrappers, but its activations are quantized
            # once.
            known = any(self._modules[k].compressor is wrapper.compressor for k in keys)  # type: ignore[union-attr]
            if role in wrapper.roles and not known:
                keys.append(key)

    def drop(self, wrapper: Any) -> None:
        """Remove a wrapper."""
        key = next(key for key, child in self._modules.items() if child is wrapper)
        del self._modules[key]
        chains = {a: [x for x in chain if x[0] != key] for a, chain in self.chains.items()}
        self.chains = {attribute: chain for attribute, chain in chains.items() if chain}
        self.input_keys = [x for x in self.input_keys if x != key]
        self.output_keys = [x for x in self.output_keys if x != key]

    def _order(self, link: tuple[str, str]) -> int:
        wrapper: Any = self._modules[link[0]]
        return int(wrapper.order)

    def read(self, attribute: str, value: Tensor, is_computed: bool = True) -> Tensor:
        """Return the value of a module's attribute in eager code: the Parameter itself if possible.

        Otherwise it is computed, or with ``is_computed=False`` returned unchanged.
        """
        held = self.held.get(attribute)
        if held is not None and held.parameter is value and not self.keeps_raw(attribute):
            if not held.has_hook:
                held.mask_gradient(self, attribute)
            for key, role in self.chains[attribute]:
                mask = self._modules[key].stored_mask(role, value)  # type: ignore[union-attr,operator]
                if mask is None:
                    continue
                # Through .data: for autograd, existing zeros are not a change.
                if mask.dtype == value.dtype:
                    value.data.mul_(mask)
                else:  # multiplying would copy the mask to the value's type
                    zero_(value.data, mask)
            return value
        if not is_computed:
            return value
        if self.is_computing(attribute):
            return self._before_quantizers(attribute, value)
        mark = (id(self), attribute)
        _computing.marks.add(mark)
        try:
            return protect(self.transform(attribute, value), value, attribute)
        finally:
            _computing.marks.discard(mark)

    def is_computing(self, attribute: str) -> bool:
        """Whether an attribute is being computed right now, so that it is read by a quantizer itself."""
        return (id(self), attribute) in _computing.marks

    def keeps_raw(self, attribute: str) -> bool:
        """Whether a pruner computes an attribute, so that its Parameter must not be changed."""
        for key, role in self.chains.get(attribute, ()):
            wrapper: Any = self._modules[key]
            if wrapper.keeps_raw(role):
                return True
        return False

    def pruned(self, attribute: str, value: Tensor) -> Tensor:
        """Return an attribute with all pruners applied, before any quantizer."""
        for key, role in self.chains.get(attribute, ()):
            wrapper: Any = self._modules[key]
            value = value if wrapper.order == 1 else wrapper.transform(role, value, [])
        return value

    def _before_quantizers(self, attribute: str, value: Tensor) -> Tensor:
        """Return an attribute as the quantizer that reads it gets it, with its masks."""
        value = self.pruned(attribute, value)
        wrappers: list[Any] = [self._modules[key] for key, _ in self.chains.get(attribute, ())]
        quantizer = next((wrapper for wrapper in wrappers if wrapper.order == 1), None)
        return value if quantizer is None else quantizer.unquantized(value)

    def transform(self, attribute: str, value: Tensor) -> Tensor:
        """Return the compressed value of an attribute, computed."""
        masks: Masks = []
        for key, role in self.chains.get(attribute, ()):
            value = self._modules[key].transform(role, value, masks)  # type: ignore[union-attr,operator]
        return value

    def mask_gradient(self, attribute: str, gradient: Tensor) -> Tensor:
        """Return the gradient of an attribute, zero where it is masked."""
        for key, role in self.chains.get(attribute, ()):
            wrapper: Any = self._modules[key]
            is_masked = wrapper.order == 0 and not (
                wrapper.keeps_raw(role) or wrapper._shows_gradient
            )
            mask = wrapper.mask_for(role, gradient) if is_masked else None
            if mask is not None:
                gradient = gradient * mask
        return gradient

    def hold(self, attribute: str, parameter: Any) -> None:
        """Let a Parameter store its zeros itself, if the attribute has only masks."""
        chain = self.chains.get(attribute, ())
        is_masked = bool(chain) and all(self._order(link) == 0 for link in chain)
        if not is_masked or not issubclass(type(parameter), nn.Parameter):
            parameter = None
        held = self.held.get(attribute)
        if held is not None and held.parameter is not parameter:
            self.held.pop(attribute).release()
        if parameter is not None and attribute not in self.held:
            self.held[attribute] = HeldParameter(parameter)
            self.held[attribute].mask_gradient(self, attribute)

    def keep_quantizers(self, wrapper: Any, roles: Collection[str]) -> None:
        """Quantize a wrapper's input and output here only if ``roles`` names them."""
        key = next(key for key, child in self._modules.items() if child is wrapper)
        for role, keys in (("input", self.input_keys), ("output", self.output_keys)):
            others = [self._modules[k] for k in keys if k != key]
            is_done = any(other.compressor is wrapper.compressor for other in others)  # type: ignore[union-attr]
            if role in roles and key not in keys and not is_done:
                keys.append(key)
            elif role not in roles and key in keys:
                keys.remove(key)


class HeldParameter:
    """A Parameter that stores the zeros of its masks, and the hook on its gradient.

    It is compared by identity: functional_call, FSDP2 and replicas temporarily replace it by other
    tensors, which must not be changed.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.has_hook = False
        self._handle: Any = None

    def mask_gradient(self, sidecar: Sidecar, attribute: str) -> None:
        """Register the hook once the Parameter requires a gradient."""
        if self.parameter.requires_grad:
            self._handle = self.parameter.register_hook(MaskedGradient(sidecar, attribute))  # type: ignore[no-untyped-call]
            self.has_hook = True

    def release(self) -> None:
        """Remove the hook."""
        if self.has_hook:
            self._handle.remove()
            if not self.parameter._backward_hooks:
                self.parameter._backward_hooks = None  # as before


class MaskedGradient:
    """A tensor hook that keeps the gradient of pruned weights at zero."""

    __torch_unserializable__ = True  # copies in other processes need no warning

    def __init__(self, sidecar: Sidecar, attribute: str) -> None:
        self.sidecar = weakref.ref(sidecar)
        self.attribute = attribute

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the gradient times the current masks."""
        sidecar = self.sidecar()
        return gradient if sidecar is None else sidecar.mask_gradient(self.attribute, gradient)


def hold_parameters(module: nn.Module) -> None:
    """Let the current masked Parameters of a module store their zeros."""
    sidecar: Any = module._modules.get(SIDECAR)
    if isinstance(sidecar, Sidecar):
        for attribute in {*sidecar.chains, *sidecar.held}:
            sidecar.hold(attribute, module._parameters.get(attribute))


def release_parameters(module: nn.Module) -> None:
    """Release a module's masked Parameters."""
    sidecar: Any = module._modules.get(SIDECAR)
    while isinstance(sidecar, Sidecar) and sidecar.held:
        sidecar.held.popitem()[1].release()


def write_zeros(module: nn.Module) -> None:
    """Set masked entries of a module's Parameters to zero."""
    sidecar: Any = module._modules.get(SIDECAR)
    if isinstance(sidecar, Sidecar):
        for attribute, held in sidecar.held.items():
            if not sidecar.keeps_raw(attribute):
                sidecar.read(attribute, held.parameter)


def mask_of(module: nn.Module, name: str) -> Tensor | None:
    """Return the combined mask of all pruners on a parameter, or None."""
    sidecar: Any = module._modules.get(SIDECAR)
    mask: Tensor | None = None
    for key, role in sidecar.chains.get(name, ()) if sidecar is not None else ():
        held = getattr(sidecar._modules[key], f"{role}_mask", None)
        if held is not None:
            mask = held if mask is None else mask * held
    return mask


def is_computed(module: nn.Module, name: str) -> bool:
    """Whether a pruner computes a weight, so that the Parameter differs from it."""
    sidecar: Any = module._modules.get(SIDECAR)
    return isinstance(sidecar, Sidecar) and sidecar.keeps_raw(name)


def narrow_of(module: nn.Module) -> Any:
    """Return how a module runs on kept channels alone, or None."""
    return getattr(module._modules.get(SIDECAR), "narrow", None)
