"""Convolutions: plain, grouped, transposed, depthwise and separable."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks.keras.lowering.elementwise import activate
from lilliput.frameworks.keras.lowering.table import Writer, lowering
from lilliput.graph.ir import Shape, Tensor


@lowering("Conv1D", "Conv2D", "Conv3D")
def convolution(writer: Writer) -> Any:
    """Filters are last in the kernel, preceded by the inputs of a group."""
    return _plain(writer, "conv")


@lowering("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
def transposed(writer: Writer) -> Any:
    """Inputs are last in the kernel, preceded by the filters."""
    return _plain(writer, "conv_transpose")


@lowering("DepthwiseConv1D", "DepthwiseConv2D")
def depthwise(writer: Writer) -> Any:
    """Each input channel is removed with all the outputs computed from it."""
    return _finish(writer, _apart(writer, writer.kernel(), "bias"))


@lowering("SeparableConv1D", "SeparableConv2D")
def separable(writer: Writer) -> Any:
    """A depthwise convolution followed by one of size 1."""
    mixing = writer.kernel("pointwise_kernel")
    between = _apart(writer, writer.kernel("depthwise_kernel"), "")
    return _finish(writer, _convolve(writer, "conv", between, mixing))


def _plain(writer: Writer, name: str) -> Any:
    x = writer.channels_first(writer.input())
    return _finish(writer, _convolve(writer, name, x, writer.kernel()))


def _apart(writer: Writer, kernel: Tensor, bias: str) -> Tensor:
    """Convolve each channel separately, with a kernel of (window, channels, outputs of each)."""
    *window, channels, each = kernel.shape
    turned = writer.permute(kernel, (-2, -1, *range(len(window))))
    x = writer.channels_first(writer.input())
    space = _space(writer, writer.shape())
    held = writer.parameter(bias) if bias else None
    made: Tensor = writer.op(
        "conv_depthwise", (x.shape[0], channels * each, *space), input=x, weight=turned, bias=held
    )
    return made


def _convolve(writer: Writer, name: str, x: Tensor, kernel: Tensor) -> Tensor:
    weight = writer.permute(kernel, (-1, -2, *range(len(kernel.shape) - 2)))
    filters = weight.shape[1] if name == "conv_transpose" else weight.shape[0]
    shape = (x.shape[0], filters, *_space(writer, writer.shape()))
    made: Tensor = writer.op(
        name,
        shape,
        input=x,
        weight=weight,
        bias=writer.parameter("bias"),
        groups=getattr(writer.layer, "groups", 1),
    )
    return made


def _space(writer: Writer, shape: Shape) -> Shape:
    is_first = writer.layer.data_format == "channels_first"
    return shape[2:] if is_first else shape[1:-1]


def _finish(writer: Writer, made: Tensor) -> Tensor:
    return activate(writer, writer.channels_back(made), writer.layer.activation)
