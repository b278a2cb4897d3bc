"""Wrappers: the state of one compressor for one layer. They own the buffers, not the layer.

A wrapper refers to its module but is not in the model's call path; the sidecar of the module contains
it, so that its buffers are saved, moved and broadcast with the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.errors import AlgorithmError, StageError
from lilliput.frameworks.torch.grad import map_gradient, straight_through
from lilliput.frameworks.torch.recompute import is_recomputing
from lilliput.frameworks.torch.replicated import replicate, replicated_class
from lilliput.frameworks.torch.weights import is_binary, is_sharded, peek, raw, whole
from lilliput.frameworks.wrapping import (
    Masks,
    OwnAttributes,
    Quantizing,
    find_mask_faults,
    marker_of,
)


class Link:
    """A reference to the compressor that is shared by copies and excluded from files.

    Otherwise, copying or saving a model would include the compressor, its optimizer and everything
    they refer to.
    """

    def __init__(self, compressor: Any = None) -> None:
        self.compressor = compressor

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        return self

    def __reduce__(self) -> tuple[type[Link], tuple[()]]:
        return Link, ()


class ModuleWrapper(OwnAttributes, nn.Module):
    """One layer of the model as a compressor sees it.

    Attributes
    ----------
    module : torch.nn.Module
        The layer itself, still in its place in the model.
    name, type : str
        Its name and class name.
    config : dict
        The rule that selected it.
    layer_info : LayerInfo
        The same as one object.
    """

    order: ClassVar[int] = 0
    # A class that a module inherits from while this wrapper is attached to it, or None.
    module_mixin: ClassVar[type | None] = None
    name: str
    type: str  # type: ignore[assignment]
    config: dict[str, Any]

    def __init__(self, layer: LayerInfo, compressor: Any) -> None:
        super().__init__()
        self.layer_info = layer
        self.name, self.type = layer.name, layer.type
        self.config = layer.config
        self.roles: tuple[str, ...] = ()
        self._link = Link(compressor)
        self._fix()

    @property
    def module(self) -> nn.Module:
        """The layer itself."""
        found: nn.Module = self.layer_info.module
        return found

    @property
    def compressor(self) -> Any:
        """The compressor, or None in a model that was unpickled."""
        return self._link.compressor

    pruner = compressor
    quantizer = compressor

    @property
    def weight(self) -> Any:
        """The raw trainable weight; under a quantizer, ``module.weight`` is its rounded form.

        Gathered in full (a copy) if it is sharded across processes.
        """
        name = self.layer_info.weight_name
        return None if name is None else whole(peek(self.module, name))

    @property
    def bias(self) -> Any:
        """The raw trainable bias (of the first owner that has one), or None."""
        found = ((owner.module, owner.bias_name) for owner in self.layer_info.owners)
        return next((whole(raw(module, name)) for module, name in found if name), None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer, compressed."""
        return self.module(*args, **kwargs)

    def transform(self, role: str, value: Tensor, masks: Masks) -> Tensor:
        """Return the value that the layer uses instead of a raw weight or bias."""
        raise NotImplementedError

    @torch.inference_mode(False)  # tensors created in inference mode cannot be trained with
    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of this wrapper.

        A Parameter is registered as one, another tensor as a buffer; an existing one is
        updated in place.
        """
        held = self.tensors().get(name)
        if held is None and name not in self._buffers and self.is_reserved(name):
            raise AlgorithmError(
                f"a wrapper's {name!r} belongs to the engine; choose another name."
            )
        if not isinstance(value, Tensor):
            setattr(self, name, value)
        elif held is not None:
            with torch.no_grad():
                held.copy_(value)
        else:
            device = self.weight.device if self.weight is not None else value.device
            with torch.no_grad():
                copied = value.clone().to(device)
            if isinstance(value, nn.Parameter):
                self._register_learned(name, copied, value.requires_grad)
            else:
                self.register_buffer(name, copied)

    def _register_learned(self, name: str, value: Tensor, is_trained: bool) -> None:
        weight, model = self.layer_info.weight_name, getattr(self.compressor, "bound_model", None)
        near: Any = ()
        if weight is not None:
            near = [raw(self.module, weight)]
        elif model is not None:  # an activation: its scale follows the other weights
            near = model.parameters()
        sharded = next((p for p in near if is_sharded(p)), None)
        if sharded is not None:
            value = replicate(value, like=sharded)
            cls: Any = type(self)
            self.__class__ = replicated_class(cls)
        self.register_parameter(name, nn.Parameter(value, is_trained))

    def tensors(self) -> dict[str, Tensor]:
        """Return the buffers and parameters of this wrapper."""
        held = {**self._buffers, **self._parameters}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return copies of the tensors, and the plain attributes set by an algorithm."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.tensors().items()}
        return tensors, self.attributes()

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        for name, tensor in tensors.items():
            self.set_attribute(name, tensor)
        for name, value in values.items():
            setattr(self, name, value)

    def undo_point(self) -> Callable[[], None]:
        """Return a function that restores the current tensors and attributes."""
        groups: list[tuple[Any, dict[str, Any]]] = [
            (held, dict(held)) for held in (self._buffers, self._parameters)
        ]
        values, attributes = self.snapshot()

        def undo() -> None:
            for held, before in groups:
                held.clear()
                held.update(before)
            with torch.no_grad():
                for name, tensor in self.tensors().items():
                    tensor.copy_(values[name])
            self.reset_attributes(attributes)

        return undo

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, *rest: Any
    ) -> None:
        # A checkpoint from before compression lacks our buffers, which then keep their values.
        for name, value in list(self._buffers.items()):
            saved = state_dict.get(prefix + name)
            if value is None and saved is not None and self.bias is not None:
                self._buffers[name] = torch.ones_like(self.bias.detach())
        own = {
            name: state_dict[prefix + name]
            for name in self.tensors()
            if prefix + name in state_dict
        }
        faults = self.find_faults({**self.tensors(), **own}, {})
        rest[1].extend(f"{prefix}{name}: {text}" for name, text in faults.items())
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, [], *rest)
        if own and self.compressor is not None:
            self.compressor._take_loaded(self)


class PrunerModuleWrapper(ModuleWrapper):
    """A layer under a pruner: ``weight_mask`` and, if an algorithm sets it, ``bias_mask``."""

    order = 0
    optional_tensors = ("bias_mask",)
    weight_mask: Tensor
    bias_mask: Tensor | None
    _shows_gradient: bool

    def __init__(self, layer: LayerInfo, compressor: Any) -> None:
        super().__init__(layer, compressor)
        self.roles = ("weight", "bias")
        self._shows_gradient = False  # also of pruned entries, if an algorithm reads it
        self.register_buffer("weight_mask", torch.ones_like(self.weight.detach()))
        self.register_buffer("bias_mask", None)
        self._fix()

    def find_faults(
        self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the entries of a snapshot that do not fit, by name; masks contain only zeros and ones."""
        found = super().find_faults(tensors, values)
        return found | find_mask_faults(tensors, self.bias, is_binary)

    @torch.inference_mode(False)
    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Set new masks, in place if there are some."""
        for name, mask in masks.items():
            if getattr(self, name) is None:
                self.register_buffer(name, torch.ones_like(self.bias.detach()))
            with torch.no_grad():
                getattr(self, name).copy_(mask)

    def transform(self, role: str, value: Tensor, masks: Masks) -> Tensor:
        """Multiply a raw weight or bias by its mask, or let the pruner compute the weight."""
        mask = self.mask_for(role, value)
        if mask is None:
            return value
        is_computed = self.keeps_raw(role)
        masks.append((mask, is_computed or self._shows_gradient))
        if is_computed:
            computed: Tensor = self._pruner().compute_weight(self, value, mask)
            return with_dense_gradient(computed, self.module)
        if self._shows_gradient:
            return straight_through(value, value.detach() * mask)
        return value * mask

    def _pruner(self) -> Any:
        if self._link.compressor is None:
            raise StageError(
                f"layer {self.name!r} was being pruned by an algorithm that was not pickled with the "
                "model; rebuild the model, create the pruner and load its state."
            )
        return self._link.compressor

    def mask_for(self, role: str, value: Tensor) -> Tensor | None:
        """Return the mask of a raw weight or bias in its dtype, or None."""
        mask = self.stored_mask(role, value)
        if mask is not None and mask.dtype != value.dtype:  # mixed precision casts only parameters
            mask = mask.to(value.dtype)
        return mask

    def stored_mask(self, role: str, value: Tensor) -> Tensor | None:
        """Return the stored mask of a raw weight or bias, or None."""
        mask = self._buffers["weight_mask" if role == "weight" else "bias_mask"]
        if mask is not None and mask.shape != value.shape:
            raise StageError(
                f"layer {self.name!r}: its {role} now has shape {tuple(value.shape)}, the mask "
                f"{tuple(mask.shape)}; strip() before replacing it."
            )
        return mask


def with_dense_gradient(weight: Tensor, module: Any) -> Tensor:
    """Return a computed weight that turns the gradient of ``Embedding(sparse=True)`` into a dense one."""
    if getattr(module, "sparse", False) is not True:
        return weight
    return map_gradient(weight, lambda grad: grad.to_dense() if grad.is_sparse else grad)


class QuantizerModuleWrapper(Quantizing, ModuleWrapper):
    """A layer under a quantizer."""

    def transform(self, role: str, value: Tensor, masks: Masks) -> Tensor:
        """Quantize a raw weight."""
        (result,) = self._run(QuantType.WEIGHT, (value,))
        if self._quantizer()._needs_dense_gradient:
            result = with_dense_gradient(result, self.module)
        if not self._quantizer().keeps_zero:
            for mask, is_dense in masks:
                result = result * mask
                if is_dense:  # adds zero, with the gradient of the pruned entries
                    result = result + (value - value.detach()) * (1 - mask)
        return result

    def unquantized(self, value: Tensor) -> Tensor:
        """Return a raw weight to the quantizer that reads it from the module; see ``quant_grad``."""
        return value if self._quantizer()._differentiates_itself else value.detach()

    def quantize_output(self, tensor: Tensor) -> Tensor:
        """Quantize the layer's output, clipped first if a later clip is not a module."""
        if self._clip is not None:
            tensor = _clipped(tensor, *self._clip)
        quantized: Tensor = super().quantize_output(tensor)
        return quantized

    def _run(self, quant_type: QuantType, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._markings:
            # Compiled code cannot check in which thread it runs; only this model is affected.
            is_compiled = torch.compiler.is_dynamo_compiling()
            mark = self._markings[-1].marker if is_compiled else marker_of(self)
            if mark is not None:
                return mark(self, quant_type, tensors)
        return self._quantizer().run(self, quant_type, tensors)  # type: ignore[no-any-return]

    def _quantizer(self) -> Any:
        if self._link.compressor is None:
            raise StageError(
                f"layer {self.name!r} was quantized by an algorithm that was not pickled with the "
                "model; rebuild the model, create the quantizer and load its state."
            )
        return self._link.compressor


class DistillerModuleWrapper(ModuleWrapper):
    """A layer that a distiller compares with its teacher's.

    It is not part of the model: its ``projection``, if any, belongs to the distiller alone.
    """

    optional_tensors = ("projection",)

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore a snapshot; a projection continues to be trained."""
        learned = {name: nn.Parameter(tensor) for name, tensor in tensors.items()}
        super().restore(learned, values)


def _clipped(tensor: Tensor, low: float | None, high: float | None) -> Tensor:
    if (low, high) == (0.0, None) and not torch.is_grad_enabled():
        return torch.relu(tensor)
    # Backward of a ReLU needs its result, which a later ReLU may overwrite in place.
    return torch.clamp(tensor, low, high)


class Collector:
    """A forward hook that calls a user's function with the wrapper; pickles without the function."""

    def __init__(self, wrapper: ModuleWrapper, function: Callable[..., Any] | None) -> None:
        self.wrapper = wrapper
        self.function = function

    def __call__(self, module: nn.Module, input_: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Pass the input and output of a forward pass to the user's function, once per pass."""
        if self.function is not None and not is_recomputing():
            self.function(self.wrapper, input_ or tuple(kwargs.values()), output)

    def __getstate__(self) -> dict[str, Any]:
        return {"wrapper": self.wrapper, "function": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Collector:
        return Collector(copy.deepcopy(self.wrapper, memo), self.function)


WRAPPERS = {
    "compressor": ModuleWrapper,
    "pruner": PrunerModuleWrapper,
    "quantizer": QuantizerModuleWrapper,
    "distiller": DistillerModuleWrapper,
}
