"""Keras for the engine: layers and their masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lilliput.config.layer import LayerInfo
from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras import instrument
from lilliput.frameworks.keras import model as models
from lilliput.frameworks.keras.discover import discover, find_parameters, layers_by_path, parts_of
from lilliput.frameworks.keras.functions import retrace
from lilliput.frameworks.keras.learning import reconcile
from lilliput.frameworks.keras.masks import apply_masks, check_quantizers, fault_of, moves_zeros
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.keras.sidecar import quantizers_in, sidecar_of
from lilliput.frameworks.keras.variables import forget_in_torch, raw_weight, tensor_of, to_array
from lilliput.frameworks.keras.wrapper import WRAPPERS, ModuleWrapper
from lilliput.frameworks.ports.layers import Layers, Masks

Tensor = Any


class KerasLayers(Layers):
    """Find the layers of a model, and attach wrappers to them."""

    def layers(self, model: Any) -> list[LayerInfo]:
        """Return every layer that can be compressed; see :mod:`discover`."""
        return discover(model)

    def parts(self, model: Any) -> list[tuple[str, Any]]:
        """Return the layers and variables of a model by name."""
        return parts_of(model)

    def quantizers_in(self, model: Any) -> list[Any]:
        """Return the wrappers of quantizers attached to a model."""
        return quantizers_in(layers_by_path(model).values())

    def parameters(self, model: Any) -> dict[str, LayerInfo]:
        """Return each trained variable under all its full names."""
        return find_parameters(model)

    def is_known_type(self, name: str) -> bool:
        """Whether ``keras.layers`` has a class of that name."""
        return isinstance(getattr(keras.layers, name, None), type)

    def wrap(self, kind: str, layer: LayerInfo, compressor: Any) -> ModuleWrapper:
        """Return a new wrapper; the model is not changed."""
        for owner in layer.owners:
            policy = getattr(owner.module, "quantization_mode", None)
            if policy is not None:
                raise UnsupportedModelError(
                    f"layer {layer.name!r} was quantized by Keras itself ({policy}), which replaced its "
                    "weights; compress the float model."
                )
            if getattr(owner.module, "lora_enabled", False):
                raise UnsupportedModelError(
                    f"layer {layer.name!r} has LoRA weights besides its own; save and load the model, "
                    "which merges them, before compressing."
                )
            if kind == "quantizer" and owner.module.compute_dtype == "float64":
                raise UnsupportedModelError(
                    f"layer {layer.name!r} computes in float64; quantization is simulated in float32: "
                    "build the model with that dtype."
                )
        return WRAPPERS[kind](layer, compressor)

    def check_overlaps(self, layers: Sequence[LayerInfo]) -> None:
        """Do nothing: variables of Keras never share memory."""

    def attach(self, wrapper: ModuleWrapper) -> None:
        """Shadow the layer's attributes, in every layer that owns them."""
        models.enter(wrapper.compressor.bound_model, wrapper.compressor)
        for owner in wrapper.layer_info.owners:
            instrument.attach(owner.module, wrapper, owner.weight_name, owner.bias_name)

    def detach(self, wrapper: ModuleWrapper) -> None:
        """Remove the shadow."""
        sync(wrapper.compressor.bound_model)
        for owner in wrapper.layer_info.owners:
            instrument.detach(owner.module, wrapper)

    def announce_buffers(self, model: Any) -> None:
        """Discard the compiled functions; do nothing for a model without wrappers."""
        reconcile(model)
        models.leave_idle(model)
        forget_in_torch(model)
        retrace(model)


class KerasMasks(Masks):
    """Apply masks, and keep pruned weights at zero."""

    def write_zeros(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Write the pruned zeros into the raw weights; raise if a quantizer would change them."""
        check_quantizers(wrappers)
        self.harden(wrappers)
        self.apply_masks(wrappers)

    def to_mask(self, keep: Any, wrapper: ModuleWrapper) -> Any:
        """Return a NumPy array of booleans unchanged."""
        return np.asarray(keep)

    def to_flags(self, mask: Any) -> Any:
        """Return a mask of any type as a NumPy array of booleans."""
        return to_array(mask) != 0

    def check_mask(self, wrapper: ModuleWrapper, key: str, mask: Any) -> str | None:
        """Return the problem of a mask, or None."""
        return fault_of(wrapper, key, mask)

    def apply_masks(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Set pruned weights and their optimizer slots to zero."""
        apply_masks(wrappers, optimizer)

    def harden(self, wrappers: Sequence[ModuleWrapper], optimizer: Any = None) -> None:
        """Assign the computed weights of soft layers to their raw variables."""
        soft = [wrapper for wrapper in wrappers if wrapper.keeps_raw()]
        for wrapper in soft:
            value = wrapper.transform("weight", tensor_of(wrapper.weight), [])
            raw_weight(wrapper).assign(value)
            wrapper.set_attribute("is_soft", False)
        if soft:
            apply_masks(soft, optimizer)
            retrace(soft[0].compressor.bound_model)

    def hold_masks(self, wrappers: Sequence[ModuleWrapper]) -> None:
        """Reset pruned weights to zero after steps of Muon; other optimizers do not move them."""
        optimizer = (
            getattr(wrappers[0].compressor.bound_model, "optimizer", None) if wrappers else None
        )
        if optimizer is not None and moves_zeros(optimizer):
            apply_masks(wrappers)

    def masked_weight(self, wrapper: ModuleWrapper) -> Tensor:
        """Return the raw weight with all pruners applied."""
        weight = ops.stop_gradient(tensor_of(wrapper.weight))
        sidecar = sidecar_of(wrapper.module)
        name = str(wrapper.layer_info.weight_name)
        return weight if sidecar is None else ops.stop_gradient(sidecar.pruned(name, weight))

    def narrow_to_masks(self, pruner: Any) -> None:
        """Restrict norms to the kept channels; see :mod:`narrow`."""
        from lilliput.frameworks.keras.narrow import (
            narrow_to_masks,
        )  # here: imports are to be quick

        narrow_to_masks(pruner)

    def narrow_norms_again(self, model: Any) -> None:
        """Restrict norms for the remaining pruners of a model, after one was removed."""
        sidecars = [x for x in map(sidecar_of, model._flatten_layers()) if x is not None]
        wrappers = [w for sidecar in sidecars for w in sidecar.wrappers if w.order == 0]
        for wrapper in {id(w.compressor): w for w in wrappers}.values():
            self.narrow_norms([wrapper])

    def widen_norms(self, model: Any) -> list[str]:
        """Let norms use all channels again; return those that did not."""
        from lilliput.frameworks.keras.narrow import set_narrow

        layers = layers_by_path(model)
        held = {path: sidecar_of(layer) for path, layer in layers.items()}
        narrow = [path for path, x in held.items() if x is not None and x.narrow is not None]
        for path in narrow:
            set_narrow(layers[path], None, model)
        return narrow
