"""The axes over which layers of a torch model accumulate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lilliput.frameworks.exporting.sums import Sums
from lilliput.frameworks.torch.weights import floating


def sums_of(wrapper: Any) -> Sums | None:
    """Return the axes over which a convolution or Linear accumulates, or None for other layers."""
    layer, module = wrapper.layer_info, wrapper.module
    is_conv = isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    if not is_conv and len(layer.shape) != 2:
        return None
    groups, padding = getattr(module, "groups", 1), getattr(module, "padding", None)
    is_padded = padding == "same" or (isinstance(padding, tuple) and any(padding))
    inputs = 1 - layer.out_axis
    channels = layer.shape[inputs] * groups
    return Sums((layer.out_axis,), (inputs,), (1 - len(layer.shape),), channels, groups, is_padded)


def on_inputs(wrapper: Any, task: Callable[[list[Tensor]], None]) -> list[Any]:
    """Register a hook that runs last, after the one that quantizes the input."""

    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        items = [*args, *kwargs.values()]
        task([items[i] for i in floating(items)])

    owners = wrapper.layer_info.owners
    return [x.module.register_forward_pre_hook(hook, with_kwargs=True) for x in owners]
