"""Masks of wrapped layers: which parameters they cover, and when they may go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from lilliput.config.layer import Owner
from lilliput.errors import StageError
from lilliput.frameworks.torch.sidecar import SIDECAR
from lilliput.frameworks.torch.weights import is_parametrized, raw
from lilliput.frameworks.torch.wrapper import (
    ModuleWrapper,
    PrunerModuleWrapper,
    QuantizerModuleWrapper,
)


def owners_of(wrapper: ModuleWrapper) -> list[Owner]:
    """Return the modules that own a layer's weight, each once, whatever its names."""
    return list({id(owner.module): owner for owner in wrapper.layer_info.owners[::-1]}.values())[
        ::-1
    ]


def active_masks(wrapper: ModuleWrapper) -> list[tuple[nn.Module, str, Tensor]]:
    """Return the active masks, each with the module and the name of the parameter it covers.

    Excluded are weights that a pruner computes, whose Parameters contain no zeros.
    A shared weight is one parameter; its owners may have different biases.
    """
    weight_mask, bias_mask = (wrapper._buffers.get(k) for k in ("weight_mask", "bias_mask"))
    found, owners = [], wrapper.layer_info.owners
    if wrapper.keeps_raw():
        weight_mask = None
    if weight_mask is not None and owners[0].weight_name is not None:
        found.append((owners[0].module, owners[0].weight_name, weight_mask))
    if bias_mask is not None:
        found += [(o.module, o.bias_name, bias_mask) for o in owners if o.bias_name is not None]
    return found


def masked_parameters(wrappers: Sequence[ModuleWrapper]) -> Iterator[tuple[Any, Tensor]]:
    """Yield each raw parameter that can store its zeros itself, with its mask."""
    for wrapper in wrappers:
        for module, name, mask in active_masks(wrapper):
            if not is_parametrized(module, name):
                yield raw(module, name), mask


def check_quantizers(wrapper: ModuleWrapper) -> None:
    """Raise if a mask is removed while a quantizer that would change its zeros is attached."""
    if not isinstance(wrapper, PrunerModuleWrapper):
        return
    for owner in wrapper.layer_info.owners:
        for other in owner.module._modules[SIDECAR]._modules.values():
            if isinstance(other, QuantizerModuleWrapper) and "weight" in other.roles:
                quantizer = other.compressor
                if quantizer is None or not quantizer.keeps_zero:
                    raise StageError(
                        f"layer {wrapper.name!r} is also under {type(quantizer).__name__}, which does "
                        "not keep pruned zeros at zero by itself; strip() the quantizer first."
                    )
