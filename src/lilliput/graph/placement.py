"""Where activations are quantized: once per tensor, where runtimes expect it.

A rule says which layers have quantized inputs and outputs. Taken literally, one tensor would often be
quantized twice (as the output of a layer and as the input of the next), and the output of
a convolution before its batch norm and ReLU, where no runtime can fuse it. With the flow of tensors known:

- the output of a layer is quantized after its norm and its clip; if the clip is a function, or a module
  that is called several times, the output is clipped and quantized before it, so that the later clip
  has no effect;
- an input that comes from a quantized output, with only reshaping or max pooling in between, is not
  quantized again;
- the output of a residual block is quantized as a whole if its addition has another quantized side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lilliput.graph.flow import Flow
from lilliput.ops.qparams import Grid


@dataclass
class PlannedPlacement:
    """Where one layer's input or output is to be quantized.

    ``module`` is the path of the module whose output is quantized; empty: that of the layer itself. ``by``
    names another layer and tensor that is quantized instead: ``('conv1', 'output')``. ``clip``: bounds to
    clip the tensor to before; None: no bound.
    """

    module: str = ""
    by: tuple[str, str] | None = None
    clip: tuple[float | None, float | None] | None = None


@dataclass(frozen=True)
class Layer:
    """The properties of a layer that placement uses: its name, its module's paths, its grids by target."""

    name: str
    paths: frozenset[str]
    grids: Mapping[str, Grid]


@dataclass
class _Plan:
    layers: Mapping[str, Layer]
    flow: Flow
    keeps_ranges: bool
    placements: dict[tuple[str, str], PlannedPlacement] = field(default_factory=dict)
    owners: dict[int, tuple[str, str]] = field(default_factory=dict)  # value -> its quantizer

    def owner_of(self, value: int) -> tuple[str, str] | None:
        """Return the target that quantizes a value, following operations that only move entries."""
        while value not in self.owners:
            maker = self.flow.makers.get(value)
            if maker is None or maker.kind != "same":
                return None
            value = maker.inputs[0]
        return self.owners[value]

    def grid(self, key: tuple[str, str]) -> Grid:
        """Return the grid of a layer's input or output."""
        return self.layers[key[0]].grids[key[1]]


def place_quantizers(
    layers: Sequence[Layer], flow: Flow, keeps_ranges: bool = True
) -> Mapping[tuple[str, str], PlannedPlacement]:
    """Return where the inputs and outputs of layers are quantized, by layer name and target.

    ``keeps_ranges``: no grid extends beyond the observed range, as it may with a learned scale.
    """
    plan = _Plan({layer.name: layer for layer in layers}, flow, keeps_ranges)
    for layer in layers:
        if "output" in layer.grids:
            plan.placements[layer.name, "output"] = _place_output(layer, plan)
    for layer in layers:
        if "input" in layer.grids:
            plan.placements[layer.name, "input"] = _place_input(layer, plan)
    return plan.placements


def _place_output(layer: Layer, plan: _Plan) -> PlannedPlacement:
    flow, key = plan.flow, (layer.name, "output")
    call = flow.only_call(layer.paths)
    if call is None or len(call.outputs) != 1:
        return PlannedPlacement()
    end = flow.end_of_layer(call.outputs[0])
    readers = _input_readers(end, plan)
    same = all(plan.grid((name, "input")) == plan.grid(key) for name in readers)
    is_bare = not flow.modules_returning(end)  # a functional or shared ReLU
    if is_bare and len(set(readers)) == 1 and same:
        return PlannedPlacement(by=(readers[0], "input"))
    norm = flow.end_of_layer(call.outputs[0], kinds=("norm",))
    clip = _early_clip(end, plan) if is_bare and end != norm else None
    for value in (end, norm, call.outputs[0]):
        modules = flow.modules_returning(value)
        if modules:
            is_clipped = clip is not None and value == norm
            plan.owners[end if is_clipped else value] = key
            path = "" if modules[0] in layer.paths else modules[0]
            return PlannedPlacement(path, clip=clip if is_clipped else None)
    return PlannedPlacement()


def _early_clip(value: int, plan: _Plan) -> tuple[float | None, float | None] | None:
    """Return how to clip a tensor before it is quantized so that a later clip has no effect.

    Rounding must not exceed the bounds: zero is on every grid, and the largest observed number is
    the last one of a grid that covers the observed range.
    """
    bounds = plan.flow.bounds_of(value)
    if bounds is None or bounds[0] != 0 or not bounds[1] > 0:
        return None
    if math.isinf(bounds[1]):
        return 0.0, None
    return (0.0, bounds[1]) if plan.keeps_ranges else None


def _place_input(layer: Layer, plan: _Plan) -> PlannedPlacement:
    call = plan.flow.only_call(layer.paths)
    if call is None or len(call.inputs) != 1:
        return PlannedPlacement()
    (value,) = call.inputs
    key = (layer.name, "input")
    owner = plan.owner_of(value)
    if owner is not None:
        # Another rule may give this layer fewer bits: then it is rounded again.
        return (
            PlannedPlacement(by=owner) if plan.grid(owner) == plan.grid(key) else PlannedPlacement()
        )
    modules = plan.flow.modules_returning(value)
    is_shared = len(set(_input_readers(value, plan))) > 1
    if modules and (is_shared or _meets_quantized_side(value, plan)):
        plan.owners[value] = key
        return PlannedPlacement(modules[0])
    return PlannedPlacement()


def _input_readers(value: int, plan: _Plan) -> list[str]:
    """Return the layers that quantize a value as their input, if nothing else reads it."""
    names = []
    for operation in plan.flow.readers.get(value, []):
        paths = set(operation.paths)
        inside = [x.name for x in plan.layers.values() if "input" in x.grids and x.paths & paths]
        if not inside:
            return []
        names += inside
    return names


def _meets_quantized_side(value: int, plan: _Plan) -> bool:
    """Whether a value is added to another one that is already quantized."""
    for operation in plan.flow.readers.get(value, []):
        others = [x for x in operation.inputs if x != value]
        if operation.kind == "add" and any(plan.owner_of(x) for x in others):
            return True
    return False
