"""Torch for the engine: layers and their masks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import LayerInfo
from lilliput.frameworks.ports.layers import Layers, Masks
from lilliput.frameworks.torch import factor, instrument
from lilliput.frameworks.torch.admit import (
    check_layer,
    check_overlaps,
    check_plain_weight,
    hold_zeros,
)
from lilliput.frameworks.torch.discover import discover, find_parameters, parts_of
from lilliput.frameworks.torch.fastpath import pass_padded
from lilliput.frameworks.torch.masks import (
    active_masks,
    check_quantizers,
    masked_parameters,
    owners_of,
)
from lilliput.frameworks.torch.sidecar import SIDECAR, narrow_of
from lilliput.frameworks.torch.weights import (
    forget_,
    hold_,
    is_binary,
    is_parametrized,
    raw,
    write_,
    zero_,
)
from lilliput.frameworks.torch.wrapper import WRAPPERS, ModuleWrapper, PrunerModuleWrapper


class TorchLayers(Layers):
    """Find the layers of a model, and attach wrappers to them."""

    def layers(self, model: nn.Module) -> list[LayerInfo]:
        """Return every layer that can be compressed; see :mod:`discover`."""
        return discover(model)

    def parts(self, model: nn.Module) -> list[tuple[str, Any]]:
        """Return the modules and parameters of a model by name."""
        return parts_of(model)

    def reshard(self, model: nn.Module) -> None:
        """Make FSDP2 release gathered copies, which a forward pass without backward leaves in the root."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None:
            for module in model.modules():
                if isinstance(module, fsdp.FSDPModule):
                    module.reshard()

    def announce_buffers(self, model: nn.Module) -> None:
        """Notify DDP, which looks for buffers only if it found some when created, and encoders."""
        pass_padded(model)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model._assign_modules_buffers()  # type: ignore[no-untyped-call]

    def is_known_type(self, name: str) -> bool:
        """Whether ``torch.nn`` has a class of that name."""
        return isinstance(getattr(nn, name, None), type)

    @torch.inference_mode(False)  # masks created in inference mode cannot be trained with
    def wrap(self, kind: str, layer: LayerInfo, compressor: Any) -> ModuleWrapper:
        """Return a new wrapper; the model is not changed."""
        check_layer(layer, holds_masks=kind == "pruner")
        if kind == "pruner" and compressor.computes_weights:
            check_plain_weight(layer)
        return (compressor._wrapper_type or WRAPPERS[kind])(layer, compressor)

    def quantizers_in(self, model: nn.Module) -> list[Any]:
        """Return the wrappers of quantizers attached to a model."""
        return instrument.quantizers_in(model)

    def check_overlaps(self, layers: Sequence[LayerInfo]) -> None:
        """Raise if two weights share memory without being one parameter."""
        check_overlaps(layers)

    def attach(self, wrapper: ModuleWrapper) -> None:
        """Shadow the layer's attributes, in every module that owns them."""
        for owner in owners_of(wrapper):
            instrument.attach(owner.module, wrapper, owner.weight_name, owner.bias_name)

    def detach(self, wrapper: ModuleWrapper) -> None:
        """Remove the shadow."""
        for owner in owners_of(wrapper):
            instrument.detach(owner.module, wrapper)

    def parameters(self, model: nn.Module) -> dict[str, LayerInfo]:
        """Return each parameter under all its full names, as a layer that can be wrapped."""
        return find_parameters(model)

    def factoring(self) -> Any:
        """Return the module that replaces one layer by two, :mod:`factor`."""
        return factor


class TorchMasks(Masks):
    """Apply masks, and keep pruned weights at zero."""

    @torch.no_grad()
    def write_zeros(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Write the pruned zeros into the raw weights; raise if a parametrization hides them."""
        for wrapper in wrappers:
            check_quantizers(wrapper)
        for wrapper in wrappers:
            for module, name, mask in active_masks(wrapper):
                if is_parametrized(module, name):
                    hold_zeros(wrapper.name, module, name, mask)
        self.harden(wrappers)
        self.apply_masks(wrappers)

    def to_mask(self, keep: Any, wrapper: ModuleWrapper) -> Tensor:
        """Return a NumPy array of booleans as a tensor on the device of a wrapper's mask."""
        mask: Tensor = wrapper.weight_mask  # type: ignore[assignment]
        return torch.from_numpy(keep).to(mask.device)

    def to_flags(self, mask: Tensor) -> Tensor:
        """Return a mask as booleans, a copy; comparing booleans with zero makes integers of them."""
        return mask.clone() if mask.dtype == torch.bool else mask != 0

    def check_mask(self, wrapper: ModuleWrapper, key: str, mask: Any) -> str | None:
        """Return the problem of a mask, or None."""
        is_weight = key == "weight_mask"
        bias = None if is_weight else wrapper.bias
        if not is_weight and bias is None:
            return "the layer has no bias."
        expected = wrapper.layer_info.shape if bias is None else tuple(bias.shape)
        if not isinstance(mask, Tensor):
            return f"received {type(mask).__name__}, expected a tensor of ones and zeros."
        if tuple(mask.shape) != expected:
            return f"received shape {tuple(mask.shape)}, expected {expected}."
        if not is_binary(mask):
            return "received values other than 0 and 1."
        return None

    @torch.no_grad()
    def apply_masks(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Set pruned weights to zero and reset their optimizer state, in place."""
        for parameter, mask in masked_parameters(wrappers):
            zero_(parameter, mask)
            if optimizer is not None:
                forget_(optimizer, parameter, mask)

    @torch.no_grad()
    def harden(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Write the computed weights of soft layers into their Parameters."""
        soft = [wrapper for wrapper in wrappers if wrapper.keeps_raw()]
        for wrapper in soft:
            parameter = raw(wrapper.module, str(wrapper.layer_info.weight_name))
            write_(parameter, wrapper.transform("weight", wrapper.weight, []))
            wrapper.set_attribute("is_soft", False)
        self.apply_masks(soft, optimizer)

    @torch.no_grad()
    def masked_weight(self, wrapper: ModuleWrapper) -> Tensor:
        """Return the raw weight with all pruners applied."""
        sidecar: Any = wrapper.module._modules.get(SIDECAR)
        weight: Tensor = wrapper.weight.detach()
        return (
            weight
            if sidecar is None
            else sidecar.pruned(str(wrapper.layer_info.weight_name), weight)
        )

    @torch.no_grad()
    def hold_masks(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Set pruned weights back to zero after an optimizer step has moved them, in place."""
        hold_(list(masked_parameters(wrappers)))

    def narrow_to_masks(self, pruner: Any) -> None:
        """Restrict norms to the kept channels; see :mod:`norms`."""
        from lilliput.frameworks.torch.norms import narrow_to_masks  # here: imports are to be quick

        narrow_to_masks(pruner)

    def narrow_norms_again(self, model: nn.Module) -> None:
        """Restrict norms for the remaining pruners of a model, after one was removed."""
        left = {id(m.compressor): m for m in model.modules() if isinstance(m, PrunerModuleWrapper)}
        for wrapper in left.values():
            self.narrow_norms([wrapper])

    def widen_norms(self, model: nn.Module) -> list[str]:
        """Let norms use all channels again; return those that did not."""
        narrow = [x for x in model.named_modules() if narrow_of(x[1]) is not None]
        for _, module in narrow:
            instrument.set_narrow(module, None)
        return [name for name, _ in narrow]
