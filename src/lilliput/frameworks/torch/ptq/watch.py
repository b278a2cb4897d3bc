"""Run batches through a model, and observe its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from lilliput.frameworks.torch import statistics
from lilliput.frameworks.torch.fastpath import calling_modules

See = Callable[[int, Tensor, Tensor], Tensor | None]


class _Reached(Exception):
    """Raised when everything needed from a batch has been seen."""


def watch(
    model: nn.Module,
    batches: Sequence[Any],
    forward: Callable[..., Any] | None,
    watchers: Mapping[nn.Module, See],
    is_last: bool = False,
) -> None:
    """Call ``see(batch, input, output)`` at each call of some modules, in eval mode.

    ``input`` is the tensor that the module computes with, ``output`` its result before it is quantized; a
    tensor that ``see`` returns replaces the output. ``is_last``: the rest of the model need not run.
    """
    for index, batch in enumerate(batches):
        handles = [
            module.register_forward_hook(_hook(see, index, is_last), prepend=True, with_kwargs=True)
            for module, see in watchers.items()
        ]
        try:
            with suppress(_Reached), calling_modules():
                statistics.run(model, [batch], forward)
        finally:
            for handle in handles:
                handle.remove()


def _hook(see: See, batch: int, is_last: bool) -> Callable[..., Tensor | None]:
    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor | None:
        other = see(batch, next(iter((*args, *kwargs.values()))), output)
        if is_last:
            raise _Reached
        return other

    return hook
