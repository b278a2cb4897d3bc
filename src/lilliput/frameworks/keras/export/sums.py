"""The axes over which layers of a Keras model accumulate."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from keras import layers, tree

from lilliput.frameworks import backend_named
from lilliput.frameworks.exporting.simulation import Tensor
from lilliput.frameworks.exporting.sums import Sums


def sums_of(wrapper: Any) -> Sums | None:
    """Return the axes over which a layer accumulates, or None if it can never saturate."""
    layer, shape = wrapper.module, wrapper.layer_info.shape
    last = len(shape) - 1
    if isinstance(layer, layers.Dense):
        return Sums((1,), (0,), (-1,), shape[0])
    if isinstance(layer, layers.EinsumDense):
        return sums_of_einsum(layer.equation, shape)
    data = (1 if getattr(layer, "data_format", "") == "channels_first" else -1,)
    is_padded = getattr(layer, "padding", "valid") != "valid"
    if isinstance(layer, (layers.DepthwiseConv1D, layers.DepthwiseConv2D)):
        return Sums((last - 1, last), (), data, shape[-2], shape[-2], is_padded)
    if isinstance(layer, (layers.Conv1D, layers.Conv2D, layers.Conv3D)):
        channels = shape[-2] * layer.groups
        return Sums((last,), (last - 1,), data, channels, layer.groups, is_padded)
    return None


def sums_of_einsum(equation: str, shape: tuple[int, ...]) -> Sums | None:
    """Return the axes over which a product like ``abc,cde->abde`` accumulates, or None for other kinds.

    Examples
    --------
    >>> sums_of_einsum("abc,cde->abde", (8, 2, 4))
    Sums(outputs=(1, 2), inputs=(0,), data=(-1,), channels=8, groups=1, is_padded=False)
    """
    given, _, result = equation.partition("->")
    data, _, kernel = given.replace("...", "").partition(",")
    inputs = tuple(i for i, x in enumerate(kernel) if x not in result)
    outputs = tuple(i for i, x in enumerate(kernel) if x in result)
    if not inputs or any(kernel[i] in data for i in outputs) or outputs[-1:] != (len(shape) - 1,):
        return None
    axes = tuple(data.index(kernel[i]) - len(data) for i in inputs)
    return Sums(outputs, inputs, axes, prod(shape[i] for i in inputs))


def on_inputs(wrapper: Any, task: Callable[[list[Tensor]], None]) -> list[Any]:
    """Collect the inputs of a layer, which are already quantized."""
    return backend_named("keras").on_forward(
        wrapper, lambda _, given, __: task(tree.flatten(given))
    )
