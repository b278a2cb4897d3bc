"""Copies of a model: without compressors, with its parameters in the same memory, or with everything."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.caches import (
    cached_tensors,
    drop_caches,
    forget_states,
    written_by_modes,
)
from lilliput.frameworks.torch.deepcopy import copy_tree
from lilliput.frameworks.torch.weights import is_zero_at


def plain_copy(model: nn.Module, share: bool = False) -> nn.Module:
    """Return a copy of a model in eval mode, without compressors.

    With ``share``, parameters share memory with the model's own, and must not be written to. Those that
    masks are applied to, or that switching to evaluation may write to, are copied.
    """
    from lilliput.frameworks.torch.backend import strip
    from lilliput.frameworks.torch.discover import unwrapped

    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"model: received {type(model).__name__}, expected a torch.nn.Module."
        )
    own = unwrapped(model)
    memo = _shared_masks(own)
    if share:
        memo |= _shared_all(own, _as_masked(own))
    twin = strip(_copy(own, memo))
    twin.eval()  # a user's own train() may return nothing
    drop_caches(twin)
    return twin


def _as_masked(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that the model uses unchanged: already zero wherever a mask is."""
    from lilliput.frameworks.torch.sidecar import is_computed, mask_of

    masked = set()
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is None:
                continue
            mask = mask_of(module, leaf)
            is_other = mask is not None and not is_zero_at(parameter.detach(), mask)
            if is_other or is_computed(module, leaf):
                masked.add(id(parameter))
    yield from (p for p in model.parameters() if id(p) not in masked)


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model, without the values that it keeps between runs."""
    return _copy(model, {})


def shared_copy(model: nn.Module) -> nn.Module:
    """Return a copy with parameters in the same memory: replace them, but do not write to them.

    Those that switching to evaluation may write to are copied.
    """
    twin = _copy(model, _shared_masks(model) | _shared_all(model, model.parameters()))
    own = {id(p) for p in model.parameters()}
    kept = [name for name, p in twin.named_parameters() if id(p) in own]
    if kept:
        raise UnsupportedModelError(
            f"a copy of {type(model).__name__} still holds the model's own {', '.join(kept[:4])}, so nothing "
            "can be tried on it; remove the __deepcopy__ that returns the same module."
        )
    return twin


def whole_shared_copy(model: nn.Module) -> nn.Module:
    """Return such a copy with everything that the model keeps between runs."""
    return whole_copy(model, _shared_masks(model) | _shared_all(model, model.parameters()))


def _shared_all(model: nn.Module, parameters: Iterable[nn.Parameter]) -> dict[int, Any]:
    """Return parameters in the same memory, by identity, except those that a mode switch may write to."""
    written = {id(p) for p in written_by_modes(model).values()}
    return {id(p): _shared(p) for p in parameters if id(p) not in written}


def whole_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy of a model with everything that it keeps; ``memo`` is that of copy.deepcopy."""
    cached = [t for module in model.modules() for t in cached_tensors(module)]
    try:
        twin: nn.Module = copy_tree(model, (memo or {}) | _computed(cached))
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied, which its analysis needs: {type(error).__name__}: "
            f"{error}. Locks, generators and open files must not be attributes of modules."
        ) from error
    return twin


def _copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    twin = whole_copy(model, memo)
    drop_caches(twin)
    forget_states(twin)
    return twin


def _computed(cached: list[Tensor]) -> dict[int, Any]:
    """Return copies of computed tensors, which deepcopy does not support."""
    return {id(t): t.detach().clone() for t in cached if not t.is_leaf}


def _shared(parameter: nn.Parameter) -> nn.Parameter:
    if type(parameter) is not nn.Parameter:
        return copy.deepcopy(parameter)
    return nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)


def _shared_masks(model: nn.Module) -> dict[int, Any]:
    """Return the masks of pruners for a copy that only reads them, since they are as large as the weights."""
    from lilliput.frameworks.torch.wrapper import PrunerModuleWrapper

    wrappers = [m for m in model.modules() if isinstance(m, PrunerModuleWrapper)]
    masks = [m for w in wrappers for m in (w.weight_mask, w.bias_mask) if m is not None]
    return {id(mask): mask.detach() for mask in masks}
