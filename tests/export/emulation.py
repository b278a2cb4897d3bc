"""Integer kernels of CPUs without VNNI in plain NumPy: the same on every CPU.

By the rules in the docstring of ``lilliput.export.guard.saturation``; ``test_saturation`` compares it bit
for bit with ONNX Runtime where the CPU is one of these.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper


def pair_sums(stored, weight, groups=1):
    """Return all sums of pairs at one output place, before anything is cut to 16 bits."""
    inputs, weight = (np.asarray(x).astype(np.int64) for x in (stored, weight))
    channels, outputs = weight.shape[1], len(weight) // groups
    found = []
    for i, row in enumerate(weight):
        first = i // outputs * channels
        values = np.moveaxis(inputs[0, first : first + channels], 0, -1).reshape(-1)
        products = np.moveaxis(row, 0, -1).reshape(-1) * values
        products = np.append(products, np.zeros(len(products) % 2, np.int64))
        found.append(products.reshape(-1, 2).sum(1))
    return np.array(found)


def emulated_errors(stored, weight, groups=1):
    """Return what saturation adds to the exact sums of one output place, as far as eight bits show it."""
    sums = pair_sums(stored, weight, groups)
    is_depthwise = np.ndim(weight) > 2 and weight.shape[1] == 1 and len(weight) == groups
    if is_depthwise:
        return np.zeros(len(sums), np.int64)
    errors = (np.clip(sums, -32768, 32767) - sums).sum(1)
    return np.clip(errors, -128, 127)


def saturated_layers(path, inputs):
    """Return the Gemm layers of a file in which pairs saturate on these inputs, on a CPU without VNNI."""
    model = onnx.load(path)
    makers = {output: node for node in model.graph.node for output in node.output}
    held = {x.name: numpy_helper.to_array(x) for x in model.graph.initializer}
    layers = {
        node.name: [makers[name].input[0] for name in node.input[:2]]
        for node in model.graph.node
        if node.op_type == "Gemm" and all(name in makers for name in node.input[:2])
    }
    wanted = [source for source, _ in layers.values() if source not in held]
    given = [x.name for x in model.graph.output]
    model.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(x) for x in set(wanted) - set(given)
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [x.name for x in session.get_outputs()]
    values = dict(
        zip(names, session.run(None, {session.get_inputs()[0].name: inputs}), strict=True)
    )
    found = []
    for name, (source, weight) in layers.items():
        rows, matrix = values[source], held[weight]
        assert rows.dtype == np.uint8 and matrix.dtype == np.int8
        node = next(x for x in model.graph.node if x.name == name)
        matrix = matrix if any(x.name == "transB" and x.i for x in node.attribute) else matrix.T
        if any((np.abs(pair_sums(row[None], matrix)) > 32767).any() for row in rows):
            found.append(name)
    return found
