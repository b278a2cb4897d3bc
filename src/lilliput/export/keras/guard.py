"""Keep Keras layers from saturating in integer kernels of CPUs without VNNI; see export.saturation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lilliput.config.layer import QuantType
from lilliput.errors import ExportError
from lilliput.export.keras.examples import quantizers_on
from lilliput.export.keras.simulation import call
from lilliput.export.pairs import AIM, LIMIT, MARGIN, cpu_has_wide_dot, worst_pairs
from lilliput.export.places import Array, Inputs, to_array
from lilliput.export.result import Guarded
from lilliput.ops.qparams import QParams

_SCALES = ("weight_scale", "weight_coarse")


def wants_guard(guard: Any, target: str) -> bool:
    """Whether to guard a file for this target, or raise."""
    if guard not in (True, False, "auto"):
        raise ExportError(f"guard: received {guard!r}, expected True, False or 'auto'.")
    return guard is True or (guard == "auto" and target != "generic" and not cpu_has_wide_dot())


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


def guard_model(model: Any, batches: Sequence[Inputs]) -> list[Guarded]:
    """Make weights coarser where sums would saturate on data like these; return where they could."""
    return [row for quantizer in quantizers_on(model) for row in _guard(quantizer, batches)]


def _guard(quantizer: Any, batches: Sequence[Inputs]) -> list[Guarded]:
    seen = _watch(quantizer, batches)
    found = []
    for wrapper, _ in _candidates(quantizer):
        worst, bits = _examine(quantizer, wrapper, seen.get(wrapper.name))
        is_bad = worst > LIMIT
        if not is_bad.any():
            continue
        if hasattr(quantizer, "coarsen_weight"):
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
    """What a layer adds up: its weight as (outputs, inputs, *positions), groups and input channels."""

    rows: Callable[[Array], Array]
    groups: int
    channels: int


def _sums_of(wrapper: Any) -> _Sums | None:
    """Return what a layer adds up, None for layers that never saturate."""
    layer, shape = wrapper.module, wrapper.layer_info.shape
    if isinstance(layer, keras.layers.Dense):
        return _Sums(lambda kernel: kernel.T, 1, shape[0])
    if isinstance(layer, (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)):
        count = shape[-2]
        return _Sums(
            lambda x: np.moveaxis(x.reshape(*shape[:-2], -1, 1), (-2, -1), (0, 1)), count, count
        )
    if isinstance(layer, (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)):
        rows = lambda kernel: np.moveaxis(kernel, (-1, -2), (0, 1))  # noqa: E731
        return _Sums(rows, layer.groups, shape[-2] * layer.groups)
    return None


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
    # Depthwise layers have a scale for all outputs of an input.
    return worst.reshape(layer.shape[layer.out_axis], -1).max(1), qparams.grid.bits


def _watch(quantizer: Any, batches: Sequence[Inputs]) -> dict[str, Array]:
    """Run batches, and return the largest stored integers that reach each layer; as for torch."""
    seen: dict[str, Array] = {}
    handles = []
    for wrapper, qparams in _candidates(quantizer):
        task = _watcher(wrapper, qparams, seen)
        handles += quantizer._backend.on_forward(wrapper, task)
    try:
        for inputs in batches if handles else ():
            call(quantizer.bound_model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _watcher(wrapper: Any, qparams: QParams, seen: dict[str, Array]) -> Callable[..., None]:
    """Return a function that notes the largest integers among what a layer is called with."""
    shift = 128 * qparams.grid.is_signed
    axis = 1 if getattr(wrapper.module, "data_format", "") == "channels_first" else -1
    sums = _sums_of(wrapper)
    channels = 0 if sums is None else sums.channels
    is_padded = getattr(wrapper.module, "padding", "valid") != "valid"
    zero = float(to_array(qparams.zero_point).max()) + shift if is_padded else 0.0

    def watch(_: Any, given: Any, output: Any) -> None:
        for tensor in tree.flatten(given):
            if tensor.ndim < 2 or tensor.shape[axis] != channels:
                continue
            integers = to_array(qparams.to_integers(ops.convert_to_tensor(tensor))) + shift
            rows = np.nan_to_num(np.moveaxis(integers, axis, 0).reshape(channels, -1), nan=255.0)
            double = np.concatenate([rows[:-1] + rows[1:], rows[-1:]]).max(1).clip(min=2 * zero)
            largest = np.stack([rows.max(1).clip(min=zero), double])
            seen[wrapper.name] = np.maximum(seen.get(wrapper.name, largest), largest)

    return watch
