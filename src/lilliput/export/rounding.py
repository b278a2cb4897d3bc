"""Keep LSTMs in float if the integer kernel would round too much, judged one by one.

The kernel rounds a whole input to 256 levels. This does not affect states, which are between -1 and 1; the
energies of a spectrum, a few large ones among many small ones, are lost. So every integer LSTM is executed
alone, on its inputs in the simulation, before it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from lilliput.export.exact import INTEGER_LSTM, float_weight
from lilliput.export.notes import notes_on
from lilliput.export.packed import Packed
from lilliput.export.passes.graph import Draft
from lilliput.export.run import FAST, PLAIN, Feeds, executor, run, sqnr
from lilliput.frameworks.exporting.simulation import Inputs, Simulation, to_array


def keep_precise(
    draft: Draft, simulation: Simulation, others: Sequence[Inputs], min_sqnr: float
) -> None:
    """Restore float LSTMs where the SQNR of the integer kernel is below ``min_sqnr`` dB."""
    nodes = [x for x in draft.graph if x.op_type == INTEGER_LSTM]
    if not nodes:
        return
    names = [str(x.name) for x in draft.graph.inputs]
    example = {k: to_array(x) for k, x in simulation.by_name(names).items()}
    more = [simulation.by_name(names, x) for x in others]
    batches = [example, *({k: to_array(x) for k, x in batch.items()} for batch in more)]
    sizes = {k: x.shape[1:] for k, x in example.items()}
    batches = [x for x in batches if {k: v.shape[1:] for k, v in x.items()} == sizes]
    coarse = []
    for node, found in zip(nodes, _agreements(draft, nodes, batches), strict=True):
        if found < min_sqnr:
            _put_back(draft, node, f"8 bits are too coarse for its inputs ({found:.1f} dB)")
            coarse.append(str(node.name))
    draft.sweep()
    draft.notes += notes_on(
        coarse, "stays in float, so integer weights gain nothing; exclude it from quantization."
    )


def _agreements(draft: Draft, nodes: list[ir.Node], batches: list[Feeds]) -> list[float]:
    """Return the agreement of each integer kernel with a float LSTM of the same weights, in dB."""
    import onnx

    proto = ir.serde.serialize_model(draft.model)
    held = {x.name: x for x in proto.graph.initializer}
    alone = {x.name: x for x in proto.graph.node if x.op_type == INTEGER_LSTM}
    wanted = [x for node in alone.values() for x in (*node.input, *node.output) if x]
    inner = [x for x in dict.fromkeys(wanted) if x not in held and x not in batches[0]]
    data, names = Packed(proto.SerializeToString()).with_outputs(inner)
    values = [
        {**dict(zip(names, outputs, strict=True)), **feeds}
        for feeds, outputs in zip(batches, run(PLAIN, data, batches), strict=True)
    ]
    found = []
    for node in nodes:
        part = alone[str(node.name)]
        execute = executor(FAST, Packed(_model(onnx, part, held, proto.opset_import)))
        given = [x for x in part.input if x and x not in held]
        made = [x for x in part.output if x]
        worst = np.inf
        for value in values:
            received = execute({x: value[x] for x in given})
            pairs = zip(made, received, strict=True)
            worst = min(worst, *(sqnr(value[name], array) for name, array in pairs))
        found.append(float(worst))
    return found


def _model(onnx: Any, node: Any, held: dict[str, Any], opsets: Any) -> bytes:
    """Return a model of one node."""
    describe, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    used = [held[x] for x in dict.fromkeys(node.input) if x in held]
    inputs = [describe(x, kind, None) for x in dict.fromkeys(node.input) if x and x not in held]
    outputs = [describe(x, kind, None) for x in node.output if x]
    graph = onnx.helper.make_graph([node], "alone", inputs, outputs, used)
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def _put_back(draft: Draft, node: ir.Node, reason: str) -> None:
    """Replace an integer LSTM by a float one with the same weights."""
    inputs = list(node.inputs[:8])
    for position, at in ((1, 8), (2, 10)):
        integers, scale, zero = (_array(node, i) for i in (position, at, at + 1))
        name = f"{_value(node, position).name}_unpacked".replace("_columns", "")
        inputs[position] = draft.constant(float_weight(integers, scale, zero), name)
    attributes = list(node.attributes.values())
    new = ir.Node("", "LSTM", inputs, attributes, num_outputs=len(node.outputs), name=node.name)
    new.doc_string = reason
    draft.graph.insert_before(node, new)
    for old, made in zip(node.outputs, new.outputs, strict=True):
        made.shape, made.type, made.name = old.shape, old.type, old.name
        draft.replace(old, made)
    draft.graph.remove(node, safe=True)


def _value(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    if value is None:
        raise ValueError(f"{node.name} has no input {position}")
    return value


def _array(node: ir.Node, position: int) -> Any:
    tensor = _value(node, position).const_value
    return None if tensor is None else tensor.numpy()
