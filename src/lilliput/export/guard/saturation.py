"""Where integer kernels of CPUs without VNNI give wrong results, and how to prevent it.

Such x86 CPUs multiply unsigned activations by signed weights with ``vpmaddubsw``: two neighbouring products
are added in 16 bits and silently clipped to -32768 ... 32767. Determined by experiment with ONNX Runtime 1.31
on AVX2; an emulation in NumPy with these rules equals it bit by bit on 200 random layers:

- Pairs are the entries (0, 1), (2, 3), ... of the sum over inputs, in the order of the input features in
  Gemm and MatMul (QGemm, QLinearMatMul, MatMulIntegerToFloat), and of (kernel position, channel within the
  group) in Conv (QLinearConv): with an odd number of channels, pairs span two positions.
- Numbers of rows (including one), outputs and threads, stride, dilation, one scale or many: no difference.
- The stored integers are multiplied, zero point included (``q + 128`` for signed activations); padding is
  the zero point. Pairs of 64 * 255 fit: 7 bits never saturate, nor do two weights of opposite signs.
- Depthwise (one channel in, one out per group) and unsigned weights never do; ConvTranspose runs in float.

EfficientNet-Lite0, emulated with these rules, 8 photos, against float: 21.0 dB without saturation, 9.2 with;
7 bits in the 31 layers at risk 18.0, coarser scales in their channels 20.4. MiniLM: 16.7, 16.1, 16.4, 16.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from lilliput.config.layer import QuantType
from lilliput.errors import ConfigError
from lilliput.export.guard.pairs import AIM, LIMIT, MARGIN, worst_pairs
from lilliput.export.result import Guarded
from lilliput.frameworks import backend_of, part_for
from lilliput.frameworks.exporting.simulation import Array, Tensor, to_array
from lilliput.frameworks.exporting.sums import AddingUp, Sums
from lilliput.ops.namespace import namespace
from lilliput.ops.qparams import QParams

Candidate = tuple[Any, Sums, QParams, QParams]  # a layer, the grids of its input and of its weight


def watch_inputs(
    quantizer: Any,
    batches: Iterable[Any],
    forward: Callable[..., Any] | None = None,
    enough: int = 0,
) -> dict[str, Array]:
    """Run batches, and return the largest stored integers that reach each layer that might saturate.

    For each layer two rows: the largest of each input channel, and the largest sum of each channel and
    the next at the same position. ``forward(model, batch)`` is as in ``calibrate``. Layers with fewer than
    ``enough`` observed values per channel are skipped, and so are dynamic ones: their integers fill the
    grid, whatever the data.
    """
    return _watch(quantizer, list(candidates(quantizer)), batches, forward, enough)


def _watch(
    quantizer: Any,
    found: list[Candidate],
    batches: Iterable[Any],
    forward: Callable[..., Any] | None,
    enough: int,
) -> dict[str, Array]:
    """As :func:`watch_inputs`, for given layers."""
    model = quantizer.bound_model
    part: AddingUp = part_for(model, "export.sums")
    seen: dict[str, Array] = {}
    counts: Counter[str] = Counter()
    handles: list[Any] = []
    given = _Counted(batches)
    try:
        for wrapper, sums, qparams, _ in found:
            if not qparams.grid.is_dynamic:
                handles += part.on_inputs(wrapper, _watcher(wrapper, sums, qparams, seen, counts))
        if not handles:
            return {}
        backend_of(model).run(model, given, forward)
    finally:
        for handle in handles:
            handle.remove()
    if not given.count:
        raise ConfigError("the saturation guard received no batches: is an iterator exhausted?")
    return {name: largest for name, largest in seen.items() if counts[name] >= enough}


class _Counted:
    """Batches, and their number."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches, self.count = batches, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.count += 1
            yield batch


def guard(
    quantizer: Any,
    batches: Iterable[Any],
    forward: Callable[..., Any] | None = None,
    *,
    change: bool = True,
    enough: int = 0,
) -> list[Guarded]:
    """Keep the layers of a quantizer from saturating on data like these; return those that could.

    A quantizer with ``coarsen_weight(wrapper, factors)`` multiplies the weight's scales, by a factor for
    each output channel; one with ``reduce_bits(wrapper, bits)`` gives the layer 7 bits. Others are only
    reported, and so are all without ``change``. Layers are checked if they quantize both their weight
    and their input, with 8 bits. If fewer than ``enough`` values of a channel were observed, its activations
    may be as large as their grid.
    """
    layers = list(candidates(quantizer))
    seen = _watch(quantizer, layers, batches, forward, enough)
    found = []
    for wrapper, sums, _, weight in layers:
        worst, bits = _examine(weight, wrapper, sums, seen.get(wrapper.name))
        if not (is_bad := worst > LIMIT).any():
            continue
        after, bits_after = worst, bits
        if change:
            if hasattr(quantizer, "coarsen_weight"):
                factors = np.where(is_bad, worst / AIM, 1.0).astype(np.float32)
                like = _weight_of(wrapper)
                quantizer.coarsen_weight(wrapper, namespace(like).from_numpy(factors, like))
            elif hasattr(quantizer, "reduce_bits"):
                quantizer.reduce_bits(wrapper, 7)
            weight = quantizer.qparams(wrapper, QuantType.WEIGHT)
            after, bits_after = _examine(weight, wrapper, sums, seen.get(wrapper.name))
        count, before = int(is_bad.sum()), int(worst.max())
        found.append(Guarded(wrapper.name, count, before, bits, int(after.max()), bits_after))
    return found


def candidates(quantizer: Any) -> Iterator[Candidate]:
    """Yield the layers that saturate if weights and inputs are large, with the grids of input and weight."""
    part: AddingUp = part_for(quantizer.bound_model, "export.sums")
    for wrapper in quantizer.get_modules_wrapper():
        sums = part.sums_of(wrapper)
        if sums is None or not {"weight", "input"} <= set(wrapper.roles):
            continue
        weight = quantizer.qparams(wrapper, QuantType.WEIGHT)
        inputs = quantizer.qparams(wrapper, QuantType.INPUT)
        if weight is None or inputs is None or inputs.grid.bits > 8:
            continue
        # With scales for groups of inputs, runtimes compute in float.
        if weight.grid.bits == 8 and weight.grid.is_signed and weight.grid.group_size is None:
            yield wrapper, sums, inputs, weight


def _weight_of(wrapper: Any) -> Tensor:
    """Return the weight that a layer uses."""
    weight = getattr(wrapper.module, wrapper.layer_info.weight_name)
    return namespace(weight).detach(weight)


def _examine(
    qparams: QParams, wrapper: Any, sums: Sums, largest: Array | None
) -> tuple[Array, int]:
    """Return the worst sums of a layer as currently quantized, and the bits of its weight."""
    layer = wrapper.layer_info
    integers = to_array(qparams.to_integers(_weight_of(wrapper)))
    if largest is not None:
        largest = np.minimum(largest * MARGIN, [[255.0], [510.0]])
    worst = worst_pairs(sums.rows(integers), largest, sums.groups)
    # One scale may cover several outputs.
    worst = worst.reshape([layer.shape[axis] for axis in sums.outputs])
    others = tuple(i for i, axis in enumerate(sums.outputs) if axis != layer.out_axis)
    return worst.max(axis=others), qparams.grid.bits


def _watcher(
    wrapper: Any, sums: Sums, qparams: QParams, seen: dict[str, Array], counts: Counter[str]
) -> Callable[[list[Tensor]], None]:
    """Return a function that records the largest integers among a layer's inputs."""
    scale, zero = (to_array(x) for x in (qparams.scale, qparams.zero_point))
    grid = qparams.grid
    shift = 128 * grid.is_signed
    padding = float(zero.max()) + shift if sums.is_padded else 0.0
    terms = np.full(sums.channels, 2.0, np.float32)
    terms[-1] = 1.0  # the last channel has no next one

    def watch(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            rows = sums.by_channel(to_array(tensor).astype(np.float32, copy=False))
            if rows is None:
                continue  # not the input that is multiplied by the weight
            # The grid is monotonic, so the integers are computed from the largest values.
            single = rows.max(1)
            double = np.concatenate([(rows[:-1] + rows[1:]).max(1), single[-1:]])
            single = (np.rint(single / scale) + zero).clip(grid.low, grid.high)
            double = np.minimum(np.rint(double / scale) + terms * zero, terms * grid.high)
            single, double = (np.nan_to_num(x, nan=255.0) for x in (single, double))
            largest = np.stack([single + shift, double + terms * shift])
            largest = np.maximum(largest, [[padding], [2 * padding]])
            counts[wrapper.name] += rows.shape[1]
            seen[wrapper.name] = np.maximum(seen.get(wrapper.name, largest), largest)

    return watch
