"""Convert a traced TensorFlow function: to LiteRT by its own converter, to ONNX by tf2onnx."""

from __future__ import annotations

from typing import Any

import numpy as np

from lilliput.errors import ExportError
from lilliput.extras import require
from lilliput.frameworks.exporting.simulation import first_line
from lilliput.frameworks.keras.export.trace import Trace, require_tensorflow
from lilliput.frameworks.logs import quiet_tensorflow

_LAST_OPSET = 18  # of tf2onnx


def to_litert(trace: Trace) -> bytes:
    """Return a traced function as a float LiteRT file, with a custom operator at each quantization."""
    tensorflow = require_tensorflow()
    with quiet_tensorflow():
        try:
            converter = tensorflow.lite.TFLiteConverter.from_concrete_functions([trace.concrete])
            converter.allow_custom_ops = True  # they represent quantizations
            data: bytes = converter.convert()
        except Exception as error:
            raise ExportError(_explain(error)) from error
    return data


def _explain(error: BaseException) -> str:
    reason = first_line(error).partition("error: ")[2] or first_line(error)
    text = f"TensorFlow's converter cannot write this model for LiteRT: {reason}"
    if "static" in reason:
        text += ". Pass dynamic_batch=False, which fixes the size of the batch."
    return text


def to_onnx(traced: Trace, opset: int) -> Any:
    """Return a traced function as an ``onnx.ModelProto``."""
    tf2onnx = require(
        "tf2onnx", "writing ONNX files of Keras models needs pip install 'lilliput[litert,onnx]'"
    )
    import onnx

    # Names with a fixed number of digits, so that the file size does not depend on earlier exports.
    tf2onnx.utils.INTERNAL_NAME = 10_000
    with quiet_tensorflow():
        try:
            proto, _ = tf2onnx.convert.from_function(
                traced.function,
                input_signature=traced.specs,
                opset=_LAST_OPSET,
                custom_op_handlers={"Erfc": (_write_erfc, [])},
            )
        except Exception as error:
            raise ExportError(f"tf2onnx cannot write this model: {first_line(error)}") from error
    _fill_in(proto.graph, traced.concrete)
    proto.graph.doc_string = ""  # it would contain the number of a TensorFlow function
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
            f"the graph cannot be converted to opset {opset}: {first_line(error)}"
        ) from error


def _fill_in(graph: Any, concrete: Any) -> None:
    """Make constants of inputs that are tensors of the model, such as the mean of a Normalization."""
    from onnx import numpy_helper

    held = {inner.name: outer for outer, inner in concrete.graph.captures}
    for value in [x for x in graph.input if x.name in held]:
        graph.initializer.append(numpy_helper.from_array(held[value.name].numpy(), value.name))
        graph.input.remove(value)


def _write_erfc(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Write ``erfc(x)``, used in GELU, as ``1 - erf(x)``."""
    output = node.output[0]
    node.type = "Erf"
    one = context.make_const(f"{name}_one", np.ones((), np.float32)).output[0]
    context.insert_new_node_on_output(
        "Sub", output, name=f"{name}_complement", inputs=[one, output]
    )
