"""Train LeNet-5 faster: layers that skip weights that are zero, see taps.c.

They are ordinary layers with the same names and weights, and with the images in the last axis; pruners and
files see no difference. Not for quantizers: a weight that is rounded to zero must go on learning. Compiled on
first use by ``cc``; without it :func:`fast` returns the network unchanged.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
from archives import cache_folder
from torch import Tensor, nn
from torch.nn import functional as F

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ["-O3", "-march=native", "-ffast-math", "-mprefer-vector-width=512", "-fPIC", "-shared"]
DENSE = 0.35  # share of weights from which on other loops are faster


@cache
def library() -> ctypes.CDLL:
    """Return the compiled file, which is kept in the cache."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    path = cache_folder() / f"taps-{digest}.so"
    if not path.is_file():
        unfinished = path.with_suffix(".partial")
        subprocess.run(["cc", *FLAGS, str(SOURCE), "-o", str(unfinished)], check=True)
        unfinished.replace(path)
    return ctypes.CDLL(str(path))


def call(name: str, *values: Tensor | int) -> None:
    pointers = [
        ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_int(x) for x in values
    ]
    getattr(library(), name)(*pointers)


def is_dense(weight: Tensor) -> bool:
    return int(torch.count_nonzero(weight)) > DENSE * weight.numel()


def padded(tensor: Tensor, multiple: int = 4) -> Tensor:
    """Return a tensor with zeros behind its first axis."""
    more = -len(tensor) % multiple
    return torch.cat([tensor, tensor.new_zeros(more, *tensor.shape[1:])]) if more else tensor


class Taps(torch.autograd.Function):
    """A convolution without padding; weights that are zero get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        channels, height, width, images = x.shape
        out, size = weight.shape[0], weight.shape[-1]
        blocks = images % 64 == 0 and size == 5 and is_dense(weight)
        ctx.kind, ctx.out = "dense_" if blocks else "", out
        if blocks:
            weight, bias = padded(weight), padded(bias)
        ctx.sizes = channels, height, width, len(weight), size, images
        ctx.save_for_backward(x, weight)
        y = x.new_empty(len(weight), height - size + 1, width - size + 1, images)
        call(f"{ctx.kind}forward", x, weight, bias, y, *ctx.sizes)
        return y[:out]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx, dw, sums = None, torch.zeros_like(weight), grad.sum((1, 2, 3))
        grad = padded(grad.contiguous()) if ctx.kind else grad.contiguous()
        call(f"{ctx.kind}of_weights", x, weight, grad, dw, *ctx.sizes)
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            if ctx.kind:
                weight = weight.permute(0, 2, 3, 1).contiguous()
            call(f"{ctx.kind}of_inputs", weight, grad, dx, *ctx.sizes)
        return dx, dw[: ctx.out], sums


class Pool(torch.autograd.Function):
    """The largest of 2 × 2 values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        channels, height, width, images = ctx.shape = x.shape
        y = x.new_empty(channels, height // 2, width // 2, images)
        ctx.which = torch.empty(y.shape, dtype=torch.uint8)
        call("pool", x, y, ctx.which, *ctx.shape)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        dx = grad.new_empty(ctx.shape)
        call("unpool", grad.contiguous(), ctx.which, dx, *ctx.shape)
        return dx


class TapsConv2d(nn.Conv2d):
    """As nn.Conv2d, of (channels, rows, columns, images)."""

    def forward(self, x: Tensor) -> Tensor:
        return Taps.apply(x, self.weight, self.bias)


class TapsLinear(nn.Linear):
    """As nn.Linear, of (features, images)."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if is_dense(weight):
            return F.linear(x.t(), weight, self.bias).t()
        return Taps.apply(x[:, None, None], weight[:, :, None, None], self.bias)[:, 0, 0]


class TapsPool2d(nn.Module):
    """As nn.MaxPool2d(2), of (channels, rows, columns, images)."""

    def forward(self, x: Tensor) -> Tensor:
        return Pool.apply(x.contiguous())


class ImagesLast(nn.Sequential):
    """A network whose layers have the images in the last axis, called as any other."""

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1).t().contiguous().view(*images.shape[1:], len(images))
        for layer in self:
            x = x.flatten(0, -2) if isinstance(layer, nn.Flatten) else layer(x)
        return x.t()


def fast(model: nn.Module) -> nn.Module:
    """Return a network with convolutions with its layers made to skip zeros, and any other unchanged."""
    has_convolutions = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
    if not has_convolutions or shutil.which("cc") is None:
        return model
    return ImagesLast(*map(fast_layer, model.children()))


def fast_layer(layer: nn.Module) -> nn.Module:
    """Return a layer with the images in the last axis, and the same parameters."""
    if isinstance(layer, nn.MaxPool2d):
        return TapsPool2d()
    kinds = {nn.Conv2d: TapsConv2d, nn.Linear: TapsLinear}
    if type(layer) in kinds:
        layer.__class__ = kinds[type(layer)]
    return layer
