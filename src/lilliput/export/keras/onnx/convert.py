"""Convert a traced function with tf2onnx, and read back where it is quantized.

A LeakyRelu with a slope that no model has stands where an activation is quantized. tf2onnx knows it as an
operation on single numbers, and moves changes of layout past it. Quantized weights are inputs of the
function, so that nothing is folded into them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from lilliput.errors import ExportError
from lilliput.export.keras.scopes import layer_of
from lilliput.export.keras.trace import Trace, quiet, require_tensorflow, trace
from lilliput.export.passes.graph import SCOPES, Draft
from lilliput.export.places import DOMAIN, Key, Place, Simulation, Tensor, first_line
from lilliput.extras import require
from lilliput.frameworks.keras.discover import layers_by_path

_FIRST = 4096.0  # the slope of site 0
_LAST_OPSET = 18  # of tf2onnx


def mark_site(tensor: Tensor, place: Place, number: int) -> Tensor:
    """Return an activation behind a LeakyRelu whose slope holds the number of the site."""
    return require_tensorflow().nn.leaky_relu(tensor, alpha=_FIRST + number)


def named_weights(simulation: Simulation) -> dict[Key, str]:
    """Return the names of the inputs that stand for quantized weights.

    Recurrent layers are recognized by their constant weights, so these stay as they are.
    """
    return {
        place.key: f"lilliput_weight_{number}"
        for number, place in enumerate(simulation.places)
        if place.is_weight
        and place.qparams is not None
        and not place.wrapper.layer_info.is_bypassed
    }


def draft_of(simulation: Simulation, dynamic_batch: bool, opset: int) -> Draft:
    """Return a model as an ONNX graph with a ``Site`` wherever an activation is quantized."""
    traced = trace(simulation, mark_site, dynamic_batch, named_weights(simulation))
    draft = Draft(ir.serde.deserialize_model(_convert(traced, opset)), simulation.places)
    _name_scopes(draft, simulation.model)
    _write_sites(draft, traced)
    return draft


def _convert(traced: Trace, opset: int) -> Any:
    tf2onnx = require(
        "tf2onnx", "writing ONNX files of Keras models needs pip install 'lilliput[litert,onnx]'"
    )
    import onnx

    # Names have a number of as many digits, and a file as many bytes, however many were written before.
    tf2onnx.utils.INTERNAL_NAME = 10_000
    with quiet():
        try:
            proto, _ = tf2onnx.convert.from_function(
                traced.function,
                input_signature=traced.specs,
                opset=_LAST_OPSET,
                custom_op_handlers={"Erfc": (_write_erfc, [])},
            )
        except Exception as error:
            raise ExportError(f"tf2onnx cannot write this model: {first_line(error)}") from error
    proto.graph.doc_string = ""  # it would name a function of TensorFlow by its number
    for node in proto.graph.node:
        if node.domain == "" and not onnx.defs.has(node.op_type):
            raise ExportError(
                f"tf2onnx has no ONNX form of TensorFlow's {node.op_type} ({node.name}); replace it in "
                "the model."
            )
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except RuntimeError as error:
        raise ExportError(
            f"the graph cannot be brought to opset {opset}: {first_line(error)}"
        ) from error


def _write_erfc(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Write ``erfc(x)``, which is in GELU, as ``1 - erf(x)``."""
    output = node.output[0]
    node.type = "Erf"
    one = context.make_const(f"{name}_one", np.ones((), np.float32)).output[0]
    context.insert_new_node_on_output(
        "Sub", output, name=f"{name}_complement", inputs=[one, output]
    )


def _write_sites(draft: Draft, traced: Trace) -> None:
    for node in [x for x in draft.graph if x.op_type == "LeakyRelu"]:
        slope = node.attributes.get("alpha")
        number = -1.0 if slope is None else slope.as_float() - _FIRST
        if number < 0:
            continue
        site = traced.sites[int(number)]
        attributes = {"id": site.place, "position": site.position, "call": site.call}
        marked = ir.node("Site", [node.inputs[0]], attributes, domain=DOMAIN, version=1)
        marked.metadata_props.update(node.metadata_props)
        old, new = node.outputs[0], marked.outputs[0]
        new.shape, new.type = old.shape, old.type
        draft.graph.insert_before(node, marked)
        draft.replace(old, new)
        draft.graph.remove(node, safe=True)


def _name_scopes(draft: Draft, model: Any) -> None:
    """Note in which layer each node was traced, from the names that TensorFlow gave."""
    paths = sorted(layers_by_path(model), key=lambda path: -path.count("/"))
    for node in draft.graph:
        held = [x.name for x in (*node.outputs, *node.inputs[1:]) if x is not None]
        found = (layer_of(str(name or ""), paths) for name in (node.name, *held))
        set_scope(node, next((path for path in found if path), ""))


def set_scope(node: ir.Node, path: str) -> None:
    """Note the layer that a node belongs to."""
    node.metadata_props[SCOPES] = repr([path, ""])
