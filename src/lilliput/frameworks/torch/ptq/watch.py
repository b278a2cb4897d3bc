"""Run batches through a model, and observe its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from lilliput.frameworks.torch import statistics
from lilliput.frameworks.torch.fastpath import calling_modules

See = Callable[[int, Tensor, Tensor], None]


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

    The input is the one that the module uses, the output the one before it is quantized.
    ``is_last``: the rest of the model need not run.
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


def _hook(see: See, batch: int, is_last: bool) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        see(batch, next(iter((*args, *kwargs.values()))), output)
        if is_last:
            raise _Reached

    return hook
