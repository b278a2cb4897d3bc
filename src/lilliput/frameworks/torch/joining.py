"""``DistributedDataParallel.join()``: processes that run out of data stop before the others."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.process_group import has_group


class JoinWatch:
    """A forward pre hook that records which DistributedDataParallel runs a model."""

    def __init__(self) -> None:
        self.parallel: Any = None

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Record what runs the model now."""
        if not torch.compiler.is_compiling():
            active = DistributedDataParallel._active_ddp_module
            self.parallel = None if active is None else weakref.ref(active)

    def __deepcopy__(self, memo: dict[int, Any]) -> JoinWatch:
        return JoinWatch()

    def __reduce__(self) -> Any:
        return JoinWatch, ()


def watch_join(model: nn.Module) -> list[Any]:
    """Start recording what runs a model in a distributed run; return removable handles."""
    if not has_group():
        return []
    return [unwrapped(model).register_forward_pre_hook(JoinWatch())]


def joining(model: nn.Module) -> Any:
    """Return the DistributedDataParallel that runs a model inside ``join()``, or None.

    There, each process may make a different number of steps, so none can wait for the others.
    """
    for hook in unwrapped(model)._forward_pre_hooks.values():
        parallel = hook.parallel and hook.parallel() if isinstance(hook, JoinWatch) else None
        if parallel is not None and parallel._join_config.enable:
            return parallel
    return None
