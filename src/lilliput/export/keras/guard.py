"""Keep Keras layers from saturating in integer kernels of CPUs without VNNI; see export.saturation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lilliput.config.layer import QuantType
from lilliput.export.guard.pairs import AIM, ENOUGH, LIMIT, MARGIN, worst_pairs
from lilliput.export.keras.examples import quantizers_on
from lilliput.export.keras.simulation import call
from lilliput.export.places import Array, Inputs, to_array
from lilliput.export.result import Guarded
from lilliput.ops.qparams import QParams

_SCALES = ("weight_scale", "weight_coarse")


@contextmanager
def kept_if_done(model: Any) -> Iterator[None]:
    """Put the scales of all weights back if something goes wrong."""
    held = scales_of(model)
    try:
        yield
    except BaseException:
        set_scales(model, held)
        raise


def scales_of(model: Any) -> dict[tuple[str, str], Array]:
    """Return what a guard may change, by the name of the layer and of the tensor."""
    wrappers = [w for quantizer in quantizers_on(model) for w in quantizer.get_modules_wrapper()]
    return {
        (w.name, name): np.array(to_array(tensor))
        for w in wrappers
        for name, tensor in w.tensors().items()
        if name in _SCALES
    }


def set_scales(model: Any, held: dict[tuple[str, str], Array]) -> None:
    """Put scales back."""
    for quantizer in quantizers_on(model):
        for wrapper in quantizer.get_modules_wrapper():
            for name in _SCALES:
                if (wrapper.name, name) in held:
                    wrapper.set_attribute(name, held[wrapper.name, name])


def guard_model(model: Any, batches: Sequence[Inputs], change: bool) -> list[Guarded]:
    """Return which layers could saturate on data like these; ``change`` the weights so that none does."""
    return [row for quantizer in quantizers_on(model) for row in _guard(quantizer, batches, change)]


def may_saturate(model: Any) -> bool:
    """Whether any layer multiplies 8-bit integers, so that it matters which CPU does."""
    return any(True for quantizer in quantizers_on(model) for _ in _candidates(quantizer))


def _guard(quantizer: Any, batches: Sequence[Inputs], change: bool) -> list[Guarded]:
    seen = _watch(quantizer, batches)
    found = []
    for wrapper, _ in _candidates(quantizer):
        worst, bits = _examine(quantizer, wrapper, seen.get(wrapper.name))
        is_bad = worst > LIMIT
        if not is_bad.any():
            continue
        if change and hasattr(quantizer, "coarsen_weight"):
            factors = np.where(is_bad, worst / AIM, 1.0).astype(np.float32)
            quantizer.coarsen_weight(wrapper, ops.convert_to_tensor(factors))
        after, bits_after = _examine(quantizer, wrapper, seen.get(wrapper.name))
        count, before = int(is_bad.sum()), int(worst.max())
        found.append(Guarded(wrapper.name, count, before, bits, int(after.max()), bits_after))
    return found


def _candidates(quantizer: Any) -> Iterator[tuple[Any, QParams]]:
    """Yield the layers that saturate if weights and inputs are large, with the grid of their input."""
    for wrapper in quantizer.get_modules_wrapper():
        if _sums_of(wrapper) is None or not {"weight", "input"} <= set(wrapper.roles):
            continue
        weight = quantizer.qparams(wrapper, QuantType.WEIGHT)
        inputs = quantizer.qparams(wrapper, QuantType.INPUT)
        if weight is None or inputs is None or inputs.grid.bits > 8:
            continue
        if weight.grid.bits == 8 and weight.grid.is_signed and weight.grid.group_size is None:
            yield wrapper, inputs


@dataclass(frozen=True)
class _Sums:
    """What a layer adds up.

    ``outputs`` and ``inputs`` are axes of its kernel, the others are positions; ``data`` are the axes of
    what it is called with that go with ``inputs``. ``channels`` of data are in ``groups``.
    """

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    data: tuple[int, ...]
    channels: int
    groups: int = 1

    def rows(self, kernel: Array) -> Array:
        """Return a kernel as (outputs, inputs, *positions)."""
        count = len(self.outputs) + len(self.inputs)
        moved = np.moveaxis(kernel, (*self.outputs, *self.inputs), range(count))
        return moved.reshape(prod(moved.shape[: len(self.outputs)]), -1, *moved.shape[count:])


def _sums_of(wrapper: Any) -> _Sums | None:
    """Return what a layer adds up, None for layers that never saturate."""
    layer, shape = wrapper.module, wrapper.layer_info.shape
    last = len(shape) - 1
    if isinstance(layer, keras.layers.Dense):
        return _Sums((1,), (0,), (-1,), shape[0])
    if isinstance(layer, keras.layers.EinsumDense):
        return _sums_of_einsum(layer.equation, shape)
    data = (1 if getattr(layer, "data_format", "") == "channels_first" else -1,)
    if isinstance(layer, (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)):
        return _Sums((last - 1, last), (), data, shape[-2], shape[-2])
    if isinstance(layer, (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)):
        return _Sums((last,), (last - 1,), data, shape[-2] * layer.groups, layer.groups)
    return None


def _sums_of_einsum(equation: str, shape: tuple[int, ...]) -> _Sums | None:
    """Return what a product like ``abc,cde->abde`` adds up, None if it is of another kind.

    Examples
    --------
    >>> _sums_of_einsum("abc,cde->abde", (8, 2, 4))
    _Sums(outputs=(1, 2), inputs=(0,), data=(-1,), channels=8, groups=1)
    """
    given, _, result = equation.partition("->")
    data, _, kernel = given.replace("...", "").partition(",")
    inputs = tuple(i for i, x in enumerate(kernel) if x not in result)
    outputs = tuple(i for i, x in enumerate(kernel) if x in result)
    if not inputs or any(kernel[i] in data for i in outputs) or outputs[-1:] != (len(shape) - 1,):
        return None
    axes = tuple(data.index(kernel[i]) - len(data) for i in inputs)
    return _Sums(outputs, inputs, axes, prod(shape[i] for i in inputs))


def _examine(quantizer: Any, wrapper: Any, largest: Array | None) -> tuple[Array, int]:
    """Return the worst sums of a layer as it is quantized now, and the bits of its weight."""
    layer, qparams = wrapper.layer_info, quantizer.qparams(wrapper, QuantType.WEIGHT)
    weight = ops.convert_to_tensor(getattr(layer.module, layer.weight_name))
    integers = to_array(qparams.to_integers(weight))
    sums = _sums_of(wrapper)
    if sums is None:
        raise ValueError(wrapper.name)
    if largest is not None:
        largest = np.minimum(largest * MARGIN, [[255.0], [510.0]])
    worst = worst_pairs(sums.rows(integers), largest, sums.groups)
    # One scale may be for several outputs.
    worst = worst.reshape([layer.shape[axis] for axis in sums.outputs])
    others = tuple(i for i, axis in enumerate(sums.outputs) if axis != layer.out_axis)
    return worst.max(axis=others), qparams.grid.bits


def _watch(quantizer: Any, batches: Sequence[Inputs]) -> dict[str, Array]:
    """Run batches, and return the largest stored integers that reach each layer; as for torch."""
    seen: dict[str, Array] = {}
    counts: Counter[str] = Counter()
    handles = []
    for wrapper, qparams in _candidates(quantizer):
        task = _watcher(wrapper, qparams, seen, counts)
        handles += quantizer._backend.on_forward(wrapper, task)
    try:
        for inputs in batches if handles else ():
            call(quantizer.bound_model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {name: largest for name, largest in seen.items() if counts[name] >= ENOUGH}


def _watcher(
    wrapper: Any, qparams: QParams, seen: dict[str, Array], counts: Counter[str]
) -> Callable[..., None]:
    """Return a function that notes the largest integers among what a layer is called with."""
    shift = 128 * qparams.grid.is_signed
    sums = _sums_of(wrapper)
    is_padded = getattr(wrapper.module, "padding", "valid") != "valid"
    zero = float(to_array(qparams.zero_point).max()) + shift if is_padded else 0.0

    def watch(_: Any, given: Any, output: Any) -> None:
        for tensor in tree.flatten(given):
            rows = None if sums is None else _channels(tensor, sums)
            if rows is None:
                continue
            integers = to_array(qparams.to_integers(ops.convert_to_tensor(rows))) + shift
            integers = np.nan_to_num(integers, nan=255.0)
            double = np.concatenate([integers[:-1] + integers[1:], integers[-1:]]).max(1)
            largest = np.stack([integers.max(1).clip(min=zero), double.clip(min=2 * zero)])
            counts[wrapper.name] += integers.shape[1]
            seen[wrapper.name] = np.maximum(seen.get(wrapper.name, largest), largest)

    return watch


def _channels(tensor: Any, sums: _Sums) -> Array | None:
    """Return what a layer is called with as one row for each channel, None if it is something else."""
    if len(tensor.shape) < 2:
        return None
    array = np.moveaxis(to_array(tensor), sums.data, range(len(sums.data)))
    is_it = prod(array.shape[: len(sums.data)]) == sums.channels
    return array.reshape(sums.channels, -1) if is_it else None
