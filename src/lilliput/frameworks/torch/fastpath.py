"""Keep torch from running a whole transformer layer as one fused kernel, and from packing its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import nn

_lock = Lock()
_users = 0
_was_enabled = True
_PACKS = "_lilliput_packs"  # what an encoder holds while it passes padded batches on as they are


@contextmanager
def calling_modules() -> Iterator[None]:
    """A context in which transformer layers call their parts.

    The switch is one for all threads: the first to come turns it off, the last to go turns it on.
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
    """Let encoders pass padded batches on as they are, for as long as hooks of ours are inside.

    In evaluation, ``nn.TransformerEncoder`` makes nested tensors of them, which nothing but its fused kernel
    takes; and layers with hooks do not go through that.
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
