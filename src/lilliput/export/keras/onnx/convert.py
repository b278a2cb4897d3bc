"""Convert a traced function with tf2onnx, and read back where it is quantized.

A LeakyRelu with a slope that no model uses marks each quantized activation. tf2onnx treats it as an
elementwise operation, and moves changes of layout past it. Quantized weights are inputs of the
function, so that nothing is folded into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from lilliput.export.keras.scopes import layer_of
from lilliput.export.passes.graph import SCOPES, Draft
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.simulation import (
    DOMAIN,
    Key,
    Mark,
    Placement,
    Simulation,
    Tensor,
)

_FIRST = 4096.0  # the slope of mark 0


def put_mark(tensor: Tensor, placement: Placement, number: int) -> Tensor:
    """Return an activation passed through a LeakyRelu whose slope is the number of the mark."""
    return part_of("keras", "export.trace").put_leaky_relu(tensor, _FIRST + number)


def named_weights(simulation: Simulation) -> dict[Key, str]:
    """Return the names of the inputs that represent quantized weights.

    Recurrent layers are recognized by their constant weights, so these are kept as constants.
    """
    return {
        placement.key: f"lilliput_weight_{number}"
        for number, placement in enumerate(simulation.placements)
        if placement.is_weight
        and placement.qparams is not None
        and not placement.wrapper.layer_info.is_bypassed
    }


def draft_of(simulation: Simulation, dynamic_batch: bool, opset: int) -> Draft:
    """Return a model as an ONNX graph with a ``Mark`` wherever an activation is quantized."""
    part, weights = part_of("keras", "export.trace"), named_weights(simulation)
    traced = part.trace(simulation, put_mark, dynamic_batch, weights)
    proto = part_of("keras", "export.convert").to_onnx(traced, opset)
    draft = Draft(ir.serde.deserialize_model(proto), simulation.placements)
    _name_scopes(draft, part_of("keras", "snapshot").paths(simulation.model))
    _write_marks(draft, traced.marks)
    return draft


def _write_marks(draft: Draft, marks: Sequence[Mark]) -> None:
    for node in [x for x in draft.graph if x.op_type == "LeakyRelu"]:
        slope = node.attributes.get("alpha")
        number = -1.0 if slope is None else slope.as_float() - _FIRST
        if number < 0:
            continue
        mark = marks[int(number)]
        attributes = {"id": mark.placement, "position": mark.position, "call": mark.call}
        marked = ir.node("Mark", [node.inputs[0]], attributes, domain=DOMAIN, version=1)
        marked.metadata_props.update(node.metadata_props)
        old, new = node.outputs[0], marked.outputs[0]
        new.shape, new.type = old.shape, old.type
        draft.graph.insert_before(node, marked)
        draft.replace(old, new)
        draft.graph.remove(node, safe=True)


def _name_scopes(draft: Draft, layers: Iterable[str]) -> None:
    """Record in which layer each node was traced, from the names that TensorFlow assigned."""
    paths = sorted(layers, key=lambda path: -path.count("/"))
    for node in draft.graph:
        held = [x.name for x in (*node.outputs, *node.inputs[1:]) if x is not None]
        found = (layer_of(str(name or ""), paths) for name in (node.name, *held))
        set_scope(node, next((path for path in found if path), ""))


def set_scope(node: ir.Node, path: str) -> None:
    """Record the layer of a node."""
    node.metadata_props[SCOPES] = repr([path, ""])
