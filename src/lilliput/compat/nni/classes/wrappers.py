"""A compressed layer with the attributes of NNI's wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lilliput.frameworks.torch.sidecar import SIDECAR, Sidecar
from lilliput.frameworks.torch.weights import raw
from lilliput.torch import PrunerModuleWrapper, QuantizerModuleWrapper

# Attributes of NNI's wrappers; those set by an algorithm are added.
_OFFERED = ("module", "name", "config", "pruner", "quantizer", "weight_mask", "bias_mask")


class SeenAsWrapper:
    """Base class of a module while it is compressed: in NNI, a wrapper replaced it.

    So ``model.conv1.module``, ``.weight_mask``, ``.name``, ``.config`` and ``.if_calculated`` work, and
    ``old_weight`` is the raw weight of a quantized layer. The module's own attributes take precedence.
    """

    def __getattr__(self: Any, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            sidecar = self.__dict__.get("_modules", {}).get(SIDECAR)
            if not isinstance(sidecar, Sidecar):
                raise
            for wrapper in sidecar._modules.values():
                for found in _offer(self, wrapper, name):
                    return found
            raise

    def __setattr__(self: Any, name: str, value: Any) -> None:
        sidecar = self.__dict__.get("_modules", {}).get(SIDECAR)
        if isinstance(sidecar, Sidecar) and sidecar.is_computing(name):
            return  # quantize_weight both stored its result on the module and returned it
        super().__setattr__(name, value)


def _offer(module: Any, wrapper: Any, name: str) -> Iterator[Any]:
    """Yield the attribute of one wrapper, if it has it."""
    if name == "old_weight" and wrapper.layer_info.weight_name is not None and wrapper.order == 1:
        attribute = wrapper.layer_info.weight_name
        sidecar = module._modules[SIDECAR]
        # While the weight is being quantized, the reader gets it as the quantizer does.
        yield (
            getattr(module, attribute)
            if sidecar.is_computing(attribute)
            else raw(module, attribute)
        )
    elif name in {*wrapper.attributes(), *wrapper.tensors()} or (
        name in _OFFERED and hasattr(wrapper, name)
    ):
        yield getattr(wrapper, name)


class SeenPrunerWrapper(PrunerModuleWrapper):
    """A layer under a pruner that came through NNI's paths."""

    module_mixin = SeenAsWrapper


class SeenQuantizerWrapper(QuantizerModuleWrapper):
    """A layer under a quantizer that came through NNI's paths."""

    module_mixin = SeenAsWrapper
