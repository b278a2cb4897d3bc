"""Activation checkpointing: the forward that backward runs again must not count as another one."""

from __future__ import annotations

import torch


def is_recomputing() -> bool:
    """Whether this forward repeats an earlier one, inside backward.

    Both kinds of ``torch.utils.checkpoint``, and reversible networks, run layers within a task of the
    autograd engine. A compiled graph decides itself what it computes twice, and follows ranges once.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def may_be_recomputed() -> bool:
    """Whether this forward may be repeated in backward: it runs without gradients, or under hooks."""
    if torch.compiler.is_compiling():
        return False
    if not torch.is_grad_enabled():
        return True  # as the reentrant kind does
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None
