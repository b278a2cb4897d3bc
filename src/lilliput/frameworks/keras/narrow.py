"""Norms of a masked Keras model compute their statistics over kept channels only.

A mean that includes masked channels is not the mean that the shrunk model will compute. So a norm
weights its inputs by zero or one, in variables that are updated with the masks, without
recompilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import keras
import numpy as np
from keras import ops

from lilliput.frameworks.keras.dead import masked_in
from lilliput.frameworks.keras.discover import layers_by_path
from lilliput.frameworks.keras.instrument import update
from lilliput.frameworks.keras.scopes import strategy_of, sync
from lilliput.frameworks.keras.shadow import unshadowed
from lilliput.frameworks.keras.sidecar import sidecar_of, with_sidecar
from lilliput.frameworks.keras.variables import OURS, to_array, track, untrack
from lilliput.graph.analysis import Analysis
from lilliput.graph.cuts import balance
from lilliput.graph.dead import find_dead
from lilliput.graph.labels import Flags
from lilliput.graph.norms import Norm, find_norms

Kept = Mapping[int, Flags]  # by dimension of the input
_numbers = count()


def can_narrow(layer: Any) -> bool:
    """Whether a layer is a norm that can exclude channels."""
    kind = unshadowed(type(layer))
    if kind is keras.layers.LayerNormalization:
        return not layer.rms_scaling
    return kind in (keras.layers.RMSNormalization, keras.layers.GroupNormalization)


class Narrow:
    """The kept indices along the dimensions of a norm's input, as variables of ones and zeros."""

    def __init__(self, kept: Kept, model: Any) -> None:
        with strategy_of(model):
            self.variables = {
                dim: keras.Variable(
                    flags.astype("float32"),
                    dtype="float32",
                    trainable=False,
                    autocast=False,
                    name=f"{OURS}kept_{next(_numbers)}",
                )
                for dim, flags in kept.items()
            }

    def write(self, kept: Kept) -> None:
        """Write other flags."""
        for dim, flags in kept.items():
            self.variables[dim].assign(flags.astype("float32"))

    def kept(self) -> dict[int, Flags]:
        """Return the flags by dimension."""
        return {dim: to_array(variable) != 0 for dim, variable in self.variables.items()}

    def call(self, layer: Any, inputs: Any) -> Any:
        """Return the layer's output for kept channels, and zeros for the others."""
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = ops.cast(inputs, dtype)
        weight = ops.ones((1,) * len(x.shape), dtype)
        for dim, variable in self.variables.items():
            shape = [-1 if d == dim else 1 for d in range(len(x.shape))]
            weight = weight * ops.cast(ops.reshape(variable.value, shape), dtype)
        kind = unshadowed(type(layer))
        if kind is keras.layers.GroupNormalization:
            made = _in_groups(layer, x, weight)
        else:
            made = _over(layer, x, weight, kind is keras.layers.LayerNormalization)
        return ops.cast(made * weight, layer.compute_dtype)


def _over(layer: Any, x: Any, weight: Any, is_centred: bool) -> Any:
    """Normalize over the axes of a layer together."""
    many = len(x.shape)
    axis = layer.axis
    axes = sorted(d % many for d in ([axis] if isinstance(axis, int) else axis))
    sizes = [x.shape[d] if d in axes else 1 for d in range(many)]
    weights = weight + ops.zeros(sizes, x.dtype)
    if is_centred:
        x = x - _mean(x, weights, axes)
    made = x * ops.rsqrt(_mean(x * x, weights, axes) + layer.epsilon)
    scale, shift = (layer.gamma, layer.beta) if is_centred else (layer.scale, None)
    if scale is not None:
        made = made * ops.cast(ops.reshape(scale, sizes), x.dtype)
    return made if shift is None else made + ops.cast(ops.reshape(shift, sizes), x.dtype)


def _in_groups(layer: Any, x: Any, weight: Any) -> Any:
    """Normalize over each group of channels and all positions."""
    grouped = layer._reshape_into_groups(x)
    weights = layer._reshape_into_groups(weight + ops.zeros_like(x[:1]))
    axes = list(range(1, len(grouped.shape)))
    axes.pop(-2 if layer.axis == -1 else layer.axis - 1)
    centred = grouped - _mean(grouped, weights, axes)
    made = centred * ops.rsqrt(_mean(centred * centred, weights, axes) + layer.epsilon)
    made = ops.reshape(made, ops.shape(x))
    at = layer.axis % len(x.shape)
    shape = [-1 if d == at else 1 for d in range(len(x.shape))]
    if layer.scale:
        made = made * ops.cast(ops.reshape(layer.gamma, shape), x.dtype)
    return made + ops.cast(ops.reshape(layer.beta, shape), x.dtype) if layer.center else made


def _mean(x: Any, weights: Any, axes: list[int]) -> Any:
    """Return the weighted mean over axes."""
    total = ops.sum(x * weights, axis=axes, keepdims=True)
    return total / ops.sum(weights, axis=axes, keepdims=True)


def set_narrow(layer: Any, kept: Kept | None, model: Any) -> None:
    """Restrict a norm to these channels; an empty mapping means all of them."""
    sidecar = sidecar_of(layer)
    held = None if sidecar is None else sidecar.narrow
    if held is not None and kept is not None and held.variables.keys() == kept.keys():
        held.write(kept)
        return
    for variable in () if held is None else held.variables.values():
        untrack(layer, variable)
    if kept is None:
        if sidecar is not None:
            sidecar.narrow = None
            update(layer)
        return
    narrow = Narrow(kept, model)
    with_sidecar(layer).narrow = narrow
    for variable in narrow.variables.values():
        track(layer, variable)
    update(layer)


def narrow_of(layer: Any) -> dict[int, Flags]:
    """Return the channels that a norm uses, by dimension; empty if it uses all."""
    sidecar = sidecar_of(layer)
    return {} if sidecar is None or sidecar.narrow is None else sidecar.narrow.kept()


def narrow_to_masks(pruner: Any) -> None:
    """Restrict each norm of a pruner's model to the channels that masks keep."""
    groups = pruner.layout.groups
    analysis = getattr(groups, "analysis", None)
    if analysis is None or not analysis.walk.statistics:
        return
    model, tensors = pruner.bound_model, analysis.graph.source.tensors
    sync(model)
    dead = find_dead(groups, masked_in(tensors.masks(), tensors))
    flags = balance(analysis, groups.flags(dead))
    layers = layers_by_path(model)
    for norm in find_norms(analysis):
        kept = kept_of(analysis, norm, flags)
        if kept:
            set_narrow(layers[norm.path], kept, model)


def kept_of(analysis: Analysis, norm: Norm, removed: Flags) -> dict[int, Flags]:
    """Return the kept indices along each dimension of a norm's input that can be pruned."""
    source = norm.source
    dims = [d for d, axis in enumerate(source.axes) if analysis.walk.axes.tidy(axis)]
    return {d: analysis.kept(source, d, removed) for d in dims}


def unseen_by_norms(analysis: Analysis, kept: Mapping[str, Kept]) -> Flags:
    """Return the classes that norms exclude or never see, given the channels of each norm."""
    walk = analysis.walk
    seen: Flags = np.zeros(walk.labels.count, bool)
    for norm in find_norms(analysis):
        counted = np.unique(walk.labels.find(np.concatenate(norm.columns)))
        for dim, axis in enumerate(norm.source.axes):
            flags = kept.get(norm.path, {}).get(dim)
            for roots in analysis.classes(axis):
                here = roots if flags is None else roots[flags]
                seen[here[np.isin(here, counted)]] = True
    return ~seen
