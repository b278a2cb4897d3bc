"""Find layers that cannot be compressed exactly, before anything is changed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import LayerInfo
from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.sidecar import SIDECAR, Sidecar
from lilliput.frameworks.torch.weights import is_parametrized, is_sharded, peek


def check_layer(layer: LayerInfo, holds_masks: bool) -> None:
    """Raise if a layer cannot be wrapped; ``holds_masks`` if its weights must be able to store zeros."""
    for owner in layer.owners:
        child = owner.module._modules.get(SIDECAR)
        if child is not None and not isinstance(child, Sidecar):
            _refuse(layer, f"has a submodule called {SIDECAR!r}, a reserved name; rename it")
        for hook in owner.module._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils."):
                _refuse(
                    layer,
                    f"is under {type(hook).__module__} ({type(hook).__name__}), which computes its weight; "
                    "call its remove function first",
                )
    if layer.weight_name is not None:
        _check_weight(layer, layer.weight_name, holds_masks)


def check_plain_weight(layer: LayerInfo) -> None:
    """Raise if a weight is already computed, so that no value can be written into it."""
    if layer.weight_name is not None and is_parametrized(layer.module, layer.weight_name):
        _refuse(
            layer,
            f"has a parametrized {layer.weight_name!r}, and this pruner computes weights itself; call "
            "torch.nn.utils.parametrize.remove_parametrizations first",
        )


def _check_weight(layer: LayerInfo, name: str, holds_masks: bool) -> None:
    weight = peek(layer.module, name)
    if weight.device.type == "meta":
        _refuse(layer, "has its weight on the meta device; load the weights first")
    if weight.is_inference():
        _refuse(
            layer,
            "was created in inference mode and cannot be trained or masked; copy it outside inference mode",
        )
    if not is_sharded(weight) and 0 in weight.stride() and weight.numel() > 1 and holds_masks:
        _refuse(layer, "has an expanded weight, whose entries share memory; clone() it")
    if holds_masks and is_parametrized(layer.module, name):
        trial = torch.arange(weight.numel(), device=weight.device).reshape(weight.shape) % 2
        trial[0] = 0  # a row of zeros, which norms divide by
        hold_zeros(layer.name, layer.module, name, trial, is_trial=True)


@torch.no_grad()
def hold_zeros(
    layer: str, module: nn.Module, name: str, mask: Tensor, is_trial: bool = False
) -> None:
    """Make a parametrization return the masked weight exactly, or restore it and raise."""
    masked = peek(module, name) * mask
    parametrization: Any = module.parametrizations[name]  # type: ignore[index]
    originals = copy.deepcopy(parametrization.state_dict())
    with suppress(NotImplementedError, RuntimeError, ValueError):
        parametrization.right_inverse(masked)
    is_exact = torch.equal(peek(module, name), masked)
    if is_trial or not is_exact:
        parametrization.load_state_dict(originals)
    if not is_exact:
        raise UnsupportedModelError(
            f"layer {layer!r}: its parametrization of {name!r} cannot represent a masked weight exactly; "
            "call torch.nn.utils.parametrize.remove_parametrizations before pruning."
        )


def check_overlaps(layers: Sequence[LayerInfo]) -> None:
    """Raise if two weights share memory without being the same parameter."""
    spans = []
    for layer in layers:
        weight = layer.module._parameters.get(layer.weight_name)
        is_placed = isinstance(weight, nn.Parameter) and weight.device.type != "meta"
        if is_placed and not is_sharded(weight) and weight.numel():
            spans.append((weight.data_ptr(), weight.data_ptr() + weight.nbytes, layer))
    spans.sort(key=lambda span: span[:2])
    for (_, end, one), (start, _, other) in pairwise(spans):
        if start < end:
            _refuse(other, f"shares memory with {one.name!r}; tie them by using one Parameter")


def _refuse(layer: LayerInfo, why: str) -> None:
    raise UnsupportedModelError(f"layer {layer.name!r} ({layer.type}) {why}.")
