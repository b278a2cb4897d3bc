"""Variants of a file without kernels that round unquantized activations, to compare with the simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lilliput.export.packed import Packed

Array = np.ndarray[Any, Any]
INTEGER_LSTM = "DynamicQuantizeLSTM"
_INPUTS = 8  # the same as those of LSTM; followed by scales and zero points


def float_weight(integers: Array, scale: Array, zero_point: Array) -> Array:
    """Convert a weight of an integer LSTM (directions, inputs, gates) to the layout of a float one."""
    reals = (integers.astype(np.float32) - zero_point[:, None]) * scale[:, None]
    return np.ascontiguousarray(reals.transpose(0, 2, 1), np.float32)


def with_float_lstms(data: Packed) -> Packed:
    """Return a file whose integer LSTMs compute in floating point, with the same weights."""
    import onnx

    if INTEGER_LSTM.encode() not in data.graph:
        return data
    proto = onnx.load_from_string(data.graph)
    held = {x.name: x for x in proto.graph.initializer}
    folder = "" if data.folder is None else str(data.folder)

    def array(name: str) -> Any:
        return onnx.numpy_helper.to_array(held[name], folder)

    for node in proto.graph.node:
        if node.op_type != INTEGER_LSTM:
            continue
        inputs = list(node.input)
        for position, at in ((1, _INPUTS), (2, _INPUTS + 2)):
            parts = (array(x) for x in (inputs[position], *inputs[at : at + 2]))
            name = f"{inputs[position]}_in_float"
            if name not in held:
                held[name] = onnx.numpy_helper.from_array(float_weight(*parts), name)
                proto.graph.initializer.append(held[name])
            inputs[position] = name
        del node.input[:]
        node.input.extend(inputs[:_INPUTS])
        node.op_type, node.domain = "LSTM", ""
    return replace(data, graph=proto.SerializeToString())
