"""Biases that whole steps cannot hold are added behind their layer."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from lilliput.export.passes.bias import quantize_biases
from lilliput.export.passes.graph import Draft

ENDS = (("x", 2), ("y", 4))


def convolution(bias):
    """Return a quantized convolution of 4 filters, in a graph that tells no shapes.

    Weights of 16 bits: those of 8 and fewer would be stored finer until the bias fits.
    """
    rng = np.random.default_rng(0)
    constants = {
        "scale": np.float32(0.01),
        "zero": np.uint8(128),
        "integers": rng.integers(-1, 2, (4, 2, 1, 1)).astype(np.int16),
        "weight_scale": np.full(4, 0.5, np.float32),
        "weight_zero": np.zeros(4, np.int16),
        "bias": bias,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node(
            "DequantizeLinear", ["integers", "weight_scale", "weight_zero"], ["w"], axis=0
        ),
        helper.make_node("Conv", ["d", "w", "bias"], ["conv"], name="conv"),
        helper.make_node("Relu", ["conv"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, c, 3, 4)) for n, c in ENDS]
    held = [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def executed(proto, x):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})[0]


def test_a_bias_behind_a_convolution_is_one_number_for_each_filter():
    # Of coarse steps, 0.005, and as many filters as columns: along another axis it would fit as well.
    proto = convolution(np.float32([0.0021, 0.0122, 0.0073, -0.0028]))
    draft = Draft(ir.serde.deserialize_model(proto), [])
    quantize_biases(draft)
    assert any(node.op_type == "Add" for node in draft.graph)
    x = np.random.default_rng(1).standard_normal((1, 2, 3, 4)).astype(np.float32)
    received = executed(ir.serde.serialize_model(draft.model), x)
    onnx.checker.check_model(ir.serde.serialize_model(draft.model))
    np.testing.assert_allclose(received, executed(proto, x), atol=1e-6)
