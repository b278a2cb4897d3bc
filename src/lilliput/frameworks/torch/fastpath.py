"""Prevent torch from running a whole transformer layer as one fused kernel, and from packing its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import nn

_lock = Lock()
_users = 0
_was_enabled = True
_PACKS = "_lilliput_packs"  # marks an encoder that does not pack padded batches for now


@contextmanager
def calling_modules() -> Iterator[None]:
    """A context in which transformer layers call their parts.

    The switch is shared by all threads: the first one turns it off, the last one turns it on.
    """
    global _users, _was_enabled
    with _lock:
        if _users == 0:
            _was_enabled = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.backends.mha.set_fastpath_enabled(_was_enabled)


def pass_padded(model: nn.Module) -> None:
    """Prevent encoders from packing padded batches while they contain our hooks.

    In evaluation, ``nn.TransformerEncoder`` turns padded batches into nested tensors, which only its fused
    kernel supports, and layers with hooks do not use that kernel.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            if _has_hooks(module):
                if getattr(module, "use_nested_tensor", False):
                    module.use_nested_tensor, module.__dict__[_PACKS] = False, True
            elif module.__dict__.pop(_PACKS, False):
                module.use_nested_tensor = True


def _has_hooks(module: nn.Module) -> bool:
    hooks = [
        hook
        for part in module.modules()
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
    return any(str(getattr(hook, "__module__", "")).startswith("lilliput.") for hook in hooks)
