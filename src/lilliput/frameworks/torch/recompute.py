"""Activation checkpointing: the forward pass that backward repeats must not count as another one."""

from __future__ import annotations

import torch
from torch import Tensor


def is_recomputing() -> bool:
    """Whether this forward pass repeats an earlier one, inside backward.

    Both kinds of ``torch.utils.checkpoint``, and reversible networks, run layers within a task of the
    autograd engine. Compiled code uses :func:`when_recomputing` instead, at run time.
    """
    return not torch.compiler.is_compiling() and _is_in_backward()


def when_recomputing(like: Tensor) -> Tensor | None:
    """Return, in compiled code, a flag that is true if its graph runs inside backward."""
    if not torch.compiler.is_dynamo_compiling():
        return None
    flag: Tensor = _in_backward(like)
    return flag


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


# An operation, so that the compiler cannot treat the answer as constant.
@torch.library.custom_op("lilliput::in_backward", mutates_args=())
def _in_backward(like: Tensor) -> Tensor:
    return torch.tensor(_is_in_backward(), device=like.device)


@_in_backward.register_fake
def _(like: Tensor) -> Tensor:
    return like.new_empty((), dtype=torch.bool)


def may_be_recomputed() -> bool:
    """Whether this forward pass may be repeated in backward: it runs without gradients, or with hooks."""
    if torch.compiler.is_compiling():
        return False
    if not torch.is_grad_enabled():
        return True  # as in the reentrant kind
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None
