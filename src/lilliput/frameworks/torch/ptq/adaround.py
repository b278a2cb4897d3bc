"""AdaRound: choose for each weight whether to round up or down, by the layer's output.

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", 2020. With
``h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1)`` the weight ``s * clip(floor(w / s) + h(V), low, high)`` is
trained, layer by layer, to reproduce the float layer's output (after its norm and ReLU) from its
quantized input, while ``1 - |2 h - 1|^beta`` pushes ``h`` to 0 or 1.

Output channels are independent, so the loss of each is relative to that of rounding to nearest; a channel
that did not improve on that is rounded to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lilliput.frameworks.torch.ptq.trace import PlainLayer
from lilliput.ops.qparams import QParams

_STRETCH = 1.2  # h reaches 0 and 1 at finite V
_BETA = (20.0, 2.0)
LARGEST = 1 << 26  # numbers in one layer's samples


@dataclass(frozen=True)
class Settings:
    """How long each layer is trained, and on how much data; see :class:`PTQQuantizer`."""

    steps: int = 1000
    batch_size: int = 256
    positions: int = 8192
    learning_rate: float = 0.05
    regularization: float = 10.0
    warm_up: float = 0.2


class Finish:
    """The operations that belong to a layer after it: its batch norm and its ReLU."""

    def __init__(self, norm: Any, has_relu: bool) -> None:
        self.has_relu = has_relu
        self.factor: Tensor | None = None
        if norm is not None:
            weight, bias = (norm._parameters[name] for name in ("weight", "bias"))
            self.factor = torch.rsqrt(norm.running_var.float() + norm.eps)
            self.factor = self.factor if weight is None else self.factor * weight.detach()
            self.shift = -norm.running_mean * self.factor
            self.shift = self.shift if bias is None else self.shift + bias.detach()

    def __call__(self, output: Tensor) -> Tensor:
        """Return an output after norm and ReLU, channels last."""
        if self.factor is not None:
            output = output * self.factor + self.shift
        return output.relu() if self.has_relu else output


@dataclass(frozen=True)
class Samples:
    """Inputs of a layer as ``(rows, groups, inputs)``, and the wanted outputs as ``(rows, channels)``."""

    inputs: Tensor
    wanted: Tensor
    finish: Finish

    def errors(self, weight: Tensor, bias: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """Return the mean squared error of each output channel, on some rows or all."""
        inputs, wanted = self.inputs, self.wanted
        if rows is not None:
            inputs, wanted = inputs[rows], wanted[rows]
        groups = inputs.shape[1]
        matrix = weight.reshape(groups, -1, inputs.shape[2])
        if groups == 1:
            output = inputs[:, 0] @ matrix[0].T
        else:
            output = torch.einsum("ngi,goi->ngo", inputs, matrix).flatten(1)
        output = output if bias is None else output + bias
        return (self.finish(output) - wanted).square().mean(0)


class Rounding:
    """A weight between the grid points below and above each of its entries."""

    def __init__(self, weight: Tensor, qparams: QParams, factor: Tensor | None) -> None:
        self.grid = qparams.grid
        self.factor = torch.ones(()) if factor is None else factor.float()
        wide = weight.float() * self.factor
        scale, zero = (qparams.spread(x, wide) for x in (qparams.scale, qparams.zero_point))
        self.scale: Tensor = scale.float()
        self.zero: Tensor = zero.float()
        place = wide / self.scale
        self.floor: Tensor = place.floor()
        self.rest: Tensor = place - self.floor
        self.is_zero = wide == 0  # pruned entries, which stay zero

    def weight(self, up: Tensor) -> Tensor:
        """Return the weight at a fraction above the floor: 0, 1 or in between."""
        up = torch.where(self.is_zero, 0.0, up)
        integers = (self.floor + up + self.zero).clamp(self.grid.low, self.grid.high)
        value: Tensor = (integers - self.zero) * self.scale / self.factor
        return value

    def nearest(self) -> Tensor:
        """Return which entries are rounded up when rounding to nearest."""
        return (self.rest >= 0.5).float()


def learn(rounding: Rounding, samples: Samples, bias: Tensor | None, settings: Settings) -> Tensor:
    """Return the weight on its grid that reproduces the wanted outputs best."""
    with torch.no_grad():
        before = samples.errors(rounding.weight(rounding.nearest()), bias)
    share = torch.where(before > 0, 1 / before.clamp(min=1e-30), 0.0)
    start = ((rounding.rest + (_STRETCH - 1) / 2) / _STRETCH).clamp(1e-4, 1 - 1e-4)
    hidden = nn.Parameter(start.logit())
    optimizer = torch.optim.Adam([hidden], lr=settings.learning_rate)
    generator = torch.Generator().manual_seed(0)
    count = samples.inputs.shape[0]
    with torch.enable_grad():
        for step in range(settings.steps):
            rows = torch.randint(count, (settings.batch_size,), generator=generator)
            up = _soften(hidden)
            errors = samples.errors(rounding.weight(up), bias, rows.to(hidden.device))
            loss = (errors * share).mean()
            progress = step / settings.steps
            if progress >= settings.warm_up:
                loss = loss + settings.regularization * _indecision(up, progress, settings.warm_up)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return _better(rounding, samples, bias, (hidden.detach() >= 0).float(), before)


@torch.no_grad()
def _better(
    rounding: Rounding, samples: Samples, bias: Tensor | None, up: Tensor, before: Tensor
) -> Tensor:
    """Return the learned weight where its error is smaller than that of rounding to nearest."""
    is_better = samples.errors(rounding.weight(up), bias) < before
    is_better = is_better.reshape(-1, *[1] * (up.dim() - 1))
    return rounding.weight(torch.where(is_better, up, rounding.nearest()))


def _soften(hidden: Tensor) -> Tensor:
    """Return ``h(V)``."""
    return (hidden.sigmoid() * _STRETCH - (_STRETCH - 1) / 2).clamp(0, 1)


def _indecision(up: Tensor, progress: float, warm_up: float) -> Tensor:
    """Return how far the weights are from up or down, increasingly strict."""
    first, last = _BETA
    beta = first + (last - first) * (progress - warm_up) / (1 - warm_up)
    return (1 - (2 * up - 1).abs().pow(beta)).mean()


def pick(layer: PlainLayer, output: Tensor, count: int, seed: int) -> Tensor:
    """Return some of the positions in a layer's output, always the same for the same seed."""
    total = output.numel() // layer.weight.shape[0]
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(total, generator=generator)[:count].to(output.device)


def output_rows(layer: PlainLayer, output: Tensor, picked: Tensor) -> Tensor:
    """Return a layer's output at some positions, as ``(rows, channels)``."""
    rows = output.movedim(layer.wrapper.layer_info.channel_axis, -1)
    return rows.reshape(-1, rows.shape[-1])[picked].float()


def input_rows(layer: PlainLayer, inputs: Tensor, picked: Tensor) -> Tensor:
    """Return a layer's input at some positions, as ``(rows, groups, inputs)``."""
    if isinstance(layer.module, nn.Linear):
        return inputs.reshape(-1, 1, inputs.shape[-1])[picked].float()
    patches = _patches(layer.module, inputs)
    places = patches.shape[: patches.dim() - len(layer.module.kernel_size) - 1]
    found = patches[torch.unravel_index(picked, places)]
    return found.reshape(len(picked), layer.groups, -1).float()


def _patches(module: Any, inputs: Tensor) -> Tensor:
    """Return a convolution's input at each position, as a view: ``(N, *positions, C, *kernel)``."""
    dimensions = len(module.kernel_size)
    if inputs.dim() == dimensions + 1:
        inputs = inputs.unsqueeze(0)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    patches = functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
    sizes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    for axis, (kernel, stride, dilation) in enumerate(sizes, start=2):
        patches = patches.unfold(axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return patches.movedim(1, dimensions + 1)
