"""Where integer kernels of CPUs without VNNI give wrong results, and what prevents it.

Such x86 CPUs multiply unsigned activations by signed weights with ``vpmaddubsw``: two neighbouring products
are added in 16 bits and cut to -32768 ... 32767, silently. Found by experiment with ONNX Runtime 1.31 on
AVX2; NumPy by these rules equals it bit for bit on 200 random layers:

- Pairs are the entries (0, 1), (2, 3), ... of the sum over inputs, in the order of the input features in
  Gemm and MatMul (QGemm, QLinearMatMul, MatMulIntegerToFloat), and of (kernel position, channel within the
  group) in Conv (QLinearConv): with an odd number of channels, pairs reach over two positions.
- Numbers of rows (one included), outputs and threads, stride, dilation, one scale or many: no difference.
- Multiplied are the stored integers, zero point included (of signed activations ``q + 128``); padding holds
  the zero point. Pairs of 64 * 255 fit: 7 bits never saturate, nor do two weights of opposite signs.
- Depthwise (one channel in, one out per group) and unsigned weights never do; ConvTranspose runs in float.

EfficientNet-Lite0, emulated by these rules, 8 photos, against float: 21.0 dB without saturation, 9.2 with;
7 bits in the 31 layers at risk 18.0, coarser scales in their channels 20.4. MiniLM: 16.7, 16.1, 16.4, 16.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import QuantType
from lilliput.errors import ConfigError
from lilliput.export.guard.pairs import AIM, LIMIT, MARGIN, worst_pairs
from lilliput.export.result import Guarded
from lilliput.frameworks.torch import statistics
from lilliput.frameworks.torch.weights import floating
from lilliput.ops.qparams import QParams


def worst_pair_sums(weight: Tensor, largest: Tensor | None = None, groups: int = 1) -> Tensor:
    """Return how large the sum of a pair of products can get in each output channel, in magnitude.

    Those above ``LIMIT`` saturate. Never less than what occurred while inputs were watched, rarely more.

    Parameters
    ----------
    weight : tensor
        The integers: (outputs, inputs), or (outputs, inputs per group, *kernel).
    largest : tensor, optional
        As :func:`watch_inputs` returns it; by default all activations are 255.
    groups : int
        The groups of the convolution.

    Examples
    --------
    >>> weight = torch.tensor([[127, 127, 1], [64, 64, 127], [127, -127, 127]])
    >>> worst_pair_sums(weight)
    tensor([64770., 32640., 32385.])
    >>> worst_pair_sums(weight, torch.tensor([[200, 150, 9], [250, 150, 9]]))
    tensor([31750., 16000., 25400.])
    """
    seen = None if largest is None else largest.detach().cpu().numpy()
    return torch.from_numpy(worst_pairs(weight.detach().cpu().numpy(), seen, groups))


def watch_inputs(
    quantizer: Any,
    batches: Iterable[Any],
    forward: Callable[..., Any] | None = None,
    enough: int = 0,
) -> dict[str, Tensor]:
    """Run batches, and return the largest stored integers that reach each layer that might saturate.

    For each layer two rows: the largest of each input channel, and the largest sum of each channel and
    the next at the same place. ``forward(model, batch)`` is as in ``calibrate``. Layers of which fewer than
    ``enough`` values per channel were seen are left out, and those with the range of each call: their
    integers fill the grid, whatever the data.
    """
    seen: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    handles = []
    for wrapper, qparams in candidates(quantizer):
        if qparams.grid.is_dynamic:
            continue
        for owner in wrapper.layer_info.owners:
            hook = _watcher(wrapper, qparams, seen, counts)
            # It comes last, after the hook that quantizes the input.
            handles.append(owner.module.register_forward_pre_hook(hook, with_kwargs=True))
    if not handles:
        return {}
    try:
        statistics.run(quantizer.bound_model, batches, forward)
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise ConfigError("the saturation guard received no batches: is an iterator used up?")
    return {name: largest for name, largest in seen.items() if counts[name] >= enough}


def guard(
    quantizer: Any,
    batches: Iterable[Any],
    forward: Callable[..., Any] | None = None,
    *,
    change: bool = True,
    enough: int = 0,
) -> list[Guarded]:
    """Keep the layers of a quantizer from saturating on data like these; return which could.

    A quantizer with ``coarsen_weight(wrapper, factors)`` multiplies the weight's scales, by a factor for
    each output channel; one with ``reduce_bits(wrapper, bits)`` gives the layer 7 bits. Others are only
    reported, and so are all without ``change``. Layers are looked at if they quantize both their weight
    and their input, with 8 bits. Where fewer than ``enough`` values of a channel were seen, its activations
    may be as large as their grid.
    """
    seen = watch_inputs(quantizer, batches, forward, enough)
    found = []
    for wrapper, _ in candidates(quantizer):
        worst, bits = _examine(quantizer, wrapper, seen.get(wrapper.name))
        if not (is_bad := worst > LIMIT).any():
            continue
        after, bits_after = worst, bits
        if change:
            if hasattr(quantizer, "coarsen_weight"):
                quantizer.coarsen_weight(wrapper, torch.where(is_bad, worst / AIM, 1.0))
            elif hasattr(quantizer, "reduce_bits"):
                quantizer.reduce_bits(wrapper, 7)
            after, bits_after = _examine(quantizer, wrapper, seen.get(wrapper.name))
        count, before = int(is_bad.sum()), int(worst.max())
        found.append(Guarded(wrapper.name, count, before, bits, int(after.max()), bits_after))
    return found


def candidates(quantizer: Any) -> Iterator[tuple[Any, QParams]]:
    """Yield the layers that saturate if weights and inputs are large, with the grid of their input."""
    for wrapper in quantizer.get_modules_wrapper():
        is_conv = isinstance(wrapper.module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        is_known = is_conv or len(wrapper.layer_info.shape) == 2
        if not (is_known and {"weight", "input"} <= set(wrapper.roles)):
            continue
        weight = quantizer.qparams(wrapper, QuantType.WEIGHT)
        inputs = quantizer.qparams(wrapper, QuantType.INPUT)
        if weight is None or inputs is None or inputs.grid.bits > 8:
            continue
        # With scales for groups of inputs, runtimes compute in float.
        if weight.grid.bits == 8 and weight.grid.is_signed and weight.grid.group_size is None:
            yield wrapper, inputs


def _examine(quantizer: Any, wrapper: Any, largest: Tensor | None) -> tuple[Tensor, int]:
    """Return the worst sums of a layer as it is quantized now, and the bits of its weight."""
    layer, qparams = wrapper.layer_info, quantizer.qparams(wrapper, QuantType.WEIGHT)
    integers = qparams.to_integers(getattr(layer.module, layer.weight_name).detach())
    groups = getattr(layer.module, "groups", 1)
    if largest is not None:
        largest = (largest * MARGIN).clamp(max=torch.tensor([[255.0], [510.0]]))
    return worst_pair_sums(integers.movedim(layer.out_axis, 0), largest, groups), qparams.grid.bits


def _watcher(
    wrapper: Any, qparams: QParams, seen: dict[str, Tensor], counts: Counter[str]
) -> Callable[..., None]:
    """Return a hook that notes the largest integers among what a module is called with."""
    layer, shift = wrapper.layer_info, 128 * qparams.grid.is_signed
    axis, groups = 1 - len(layer.shape), getattr(layer.module, "groups", 1)
    channels = layer.shape[1 - layer.out_axis] * groups

    pairs = torch.full((channels,), 2.0)
    pairs[-1] = 1.0  # the last channel has no next one

    def watch(module: nn.Module, args: Any, kwargs: Any) -> None:
        items = [*args, *kwargs.values()]
        padding = getattr(module, "padding", None)
        is_padded = padding == "same" or (isinstance(padding, tuple) and any(padding))
        zero = float(qparams.zero_point.max()) + shift if is_padded else 0.0
        for tensor in (items[i] for i in floating(items)):
            if tensor.ndim < -axis or tensor.shape[axis] != channels or not tensor.numel():
                continue  # not what is multiplied by the weight
            single, double = (x.nan_to_num(nan=255.0) for x in _largest(tensor, axis, qparams))
            largest = torch.stack([single + shift, double + shift * pairs])
            largest = torch.maximum(largest, torch.tensor([[zero], [2 * zero]]))
            counts[wrapper.name] += tensor.numel() // channels
            seen[wrapper.name] = torch.maximum(seen.get(wrapper.name, largest), largest)

    return watch


def _largest(tensor: Tensor, axis: int, qparams: QParams) -> tuple[Tensor, Tensor]:
    """Return the largest integer of each channel, and the largest sum of it and the next at one place.

    What is on the grid grows with its integers, so that they are found after the largest.
    """
    others = [i for i in range(tensor.ndim) if i != axis % tensor.ndim]
    reals, count = tensor.float(), tensor.shape[axis]
    singles = reals.amax(others) if others else reals
    sums = reals.narrow(axis, 0, count - 1) + reals.narrow(axis, 1, count - 1)
    doubles = torch.cat([sums.amax(others) if others else sums, singles[-1:]])
    scale, zero, grid = qparams.scale, qparams.zero_point, qparams.grid
    single = (singles / scale).round() + zero
    double = (doubles / scale).round() + torch.cat([2 * zero.expand(count - 1), zero.reshape(1)])
    ends = torch.full((count,), 2.0 * grid.high)
    ends[-1] = grid.high
    return single.clamp(grid.low, grid.high), torch.minimum(double, ends)
