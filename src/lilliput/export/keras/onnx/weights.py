"""Replace the function's weight inputs by integers, in the layout of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from lilliput.export.keras.onnx.convert import named_weights, set_scope
from lilliput.export.passes.graph import Draft, array_of
from lilliput.export.passes.integers import Stored, weight_of
from lilliput.frameworks.exporting.simulation import Array, Placement, Simulation

_CHANGES = ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Identity")


def write_weights(draft: Draft, simulation: Simulation) -> None:
    """Replace the inputs that represent weights by constants."""
    placements = {placement.key: placement for placement in simulation.placements}
    inputs = {str(value.name): value for value in draft.graph.inputs}
    for key, name in named_weights(simulation).items():
        if name in inputs:
            _write(draft, inputs[name], placements[key])
            draft.graph.inputs.remove(inputs[name])
    draft.sweep()


def _write(draft: Draft, value: ir.Value, placement: Placement) -> None:
    stored = weight_of(placement)
    name = f"{placement.wrapper.name}.weight"
    for end, nodes in list(_chains(value, ())):
        reader = next((use.node for use in end.uses()), None)
        if reader is None:
            continue
        for use in end.uses():
            set_scope(use.node, placement.wrapper.name)
        turned = _turned(stored, nodes)
        if turned is None:
            reals = _apply(placement.weight(), nodes)
            draft.replace(end, draft.constant(reals, f"{name}_simulated"))
            draft.notes.append(
                f"{placement.wrapper.name}: its weight is stored in floating point, because its scales do "
                "not follow an axis of the ONNX layout."
            )
        else:
            label = name if not nodes else f"{name}_turned"
            draft.replace(end, turned.write(draft, reader, label, end))


def _chains(
    value: ir.Value, nodes: tuple[ir.Node, ...]
) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """Yield each value that a weight becomes by changes of its layout, and the nodes in between."""
    others = False
    for use in list(value.uses()):
        node = use.node
        is_change = node.op_type in _CHANGES and use.idx == 0
        if is_change and all(array_of(x) is not None for x in node.inputs[1:]):
            yield from _chains(node.outputs[0], (*nodes, node))
        else:
            others = True
    if others:
        yield value, nodes


def _apply(array: Array, nodes: tuple[ir.Node, ...]) -> Array:
    for node in nodes:
        argument = array_of(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.op_type == "Transpose":
            array = array.transpose(node.attributes["perm"].as_ints())
        elif node.op_type == "Reshape" and argument is not None:
            array = array.reshape([int(x) for x in argument])
        elif node.op_type == "Unsqueeze" and argument is not None:
            array = np.expand_dims(array, tuple(int(x) for x in argument))
        elif node.op_type == "Squeeze":
            axes = None if argument is None else tuple(int(x) for x in argument)
            array = np.squeeze(array, axes)
    return np.ascontiguousarray(array)


def _turned(stored: Stored, nodes: tuple[ir.Node, ...]) -> Stored | None:
    """Return integers in another layout, or None if their scales do not follow one axis of it."""
    if not nodes:
        return stored
    if stored.block_size is not None:
        return None
    integers = _apply(stored.integers, nodes)
    if stored.axis is None:
        return replace(stored, integers=integers)
    wide = [np.broadcast_to(stored.spread(x), stored.integers.shape) for x in (stored.scale,)]
    scale = _apply(wide[0], nodes)
    zero = _apply(np.broadcast_to(stored.spread(stored.zero_point), stored.integers.shape), nodes)
    for axis in range(scale.ndim):
        rows = [np.moveaxis(x, axis, 0).reshape(scale.shape[axis], -1) for x in (scale, zero)]
        if all((x == x[:, :1]).all() for x in rows):
            return replace(
                stored, integers=integers, scale=rows[0][:, 0], zero_point=rows[1][:, 0], axis=axis
            )
    return None
