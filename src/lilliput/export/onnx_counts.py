"""Parameters, nonzeros and multiplications of an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lilliput.frameworks.work import batch_of

if TYPE_CHECKING:
    from lilliput.export.targets.onnx import OnnxFile

# The positions of scales and zero points among the inputs of operators.
_SCALES = {
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "MatMulNBits": (2, 3),
    "DynamicQuantizeLSTM": (8, 9, 10, 11),
    "GatherBlockQuantized": (2, 3),
    "MatMulInteger": (2, 3),
    "ConvInteger": (2, 3),
}
_MOVERS = ("Gather", "Unsqueeze", "Transpose", "Cast")


def count_onnx(file: OnnxFile, arrays: Sequence[Any], named: Sequence[str]) -> dict[str, Any]:
    """Count what an ONNX file stores besides scales, zero points and shapes; ``named`` inputs come last."""
    import onnx_ir

    from lilliput.export.layers import example_sizes, fill_macs, list_layers

    graph = onnx_ir.load(file.path).graph
    scales = {
        _origin(value).name
        for node in graph
        for i, value in enumerate(node.inputs)
        if value is not None and i in _scale_inputs(node)
    }
    stored = {
        name: value.const_value.numpy()
        for name, value in graph.initializers.items()
        if name not in scales and value.const_value is not None and _is_trained(value.const_value)
    }
    zeros = _zero_counts(graph)
    shapes = {name: x.shape for name, x in zip(file.order(len(arrays), named), arrays, strict=True)}
    layers = list_layers(graph, example_sizes(graph, shapes))
    if None in [layer.macs for layer in layers]:
        fill_macs(layers, graph, partial(_inside, file, named, arrays), batch_of(arrays))
    macs = [layer.macs for layer in layers if layer.macs is not None]
    return {
        "parameters": sum(x.size for x in stored.values()),
        "nonzeros": sum(
            x.size - zeros.get(name, x.size - int(np.count_nonzero(x)))
            for name, x in stored.items()
        ),
        "macs": sum(macs) if macs and len(macs) == len(layers) and not _has_loops(graph) else None,
    }


def _has_loops(graph: Any) -> bool:
    """Whether there are multiplications inside a loop or branch, whose number only a run shows."""
    from lilliput.export.passes.graph import LAYERS

    outside = {id(node) for node in graph}
    return any(x.op_type in LAYERS and id(x) not in outside for x in graph.all_nodes())


def _inside(
    file: OnnxFile, named: Sequence[str], arrays: Sequence[Any], names: list[str]
) -> dict[str, Any]:
    """Return tensors inside a file, and its inputs, as computed by the runtime."""
    from lilliput.export.packed import Packed, external_files
    from lilliput.export.run import PLAIN, run

    feeds = dict(zip(file.order(len(arrays), named), arrays, strict=True))
    folder = file.path.parent if external_files(file.path) else None
    data, held = Packed(file.path.read_bytes(), folder=folder).with_outputs(names)
    (values,) = run(PLAIN, data, [feeds])
    return {**dict(zip(held, values, strict=True)), **feeds}


def _zero_counts(graph: Any) -> dict[str, int]:
    """Return the number of zeros represented by constants with zero points, by name."""
    from lilliput.export.passes.integers import read

    found = {}
    for node in graph:
        stored = read(node.outputs[0]) if node.op_type == "DequantizeLinear" else None
        if stored is not None:
            zeros = stored.integers == stored.spread(stored.zero_point)
            found[node.inputs[0].name] = int(np.count_nonzero(zeros))
        integers = _integers_of(node) if node.op_type == "Sub" else None
        held = [] if integers is None else [integers, _origin(node.inputs[1])]
        if held and all(x.const_value is not None for x in held):
            values, zero = (x.const_value.numpy().astype(np.int32) for x in held)
            rows = values.reshape(*zero.shape[:-1], -1)  # a zero point for each group of inputs
            found[held[0].name] = int(np.count_nonzero(rows == zero))
    return found


def _scale_inputs(node: Any) -> tuple[int, ...]:
    """Return which inputs of a node are scales or zero points.

    Both occur in ``(Cast(rows) - zero) * scale``, and scales in the product of a weight's scales with that
    of a dynamically quantized input.
    """
    if node.op_type == "Mul" and any(map(_is_dynamic_scale, node.inputs)):
        return (0, 1)
    if node.op_type in ("Mul", "Sub") and _integers_of(node) is not None:
        return (1,)
    return _SCALES.get(node.op_type, ())


def _integers_of(node: Any) -> Any:
    """Return the integers of ``(Reshape(Cast(integers)) - zero) * scale``, None if there are none."""
    made_by = node.inputs[0].producer() if node.inputs[0] else None
    for kind in ("Sub", "Reshape"):
        if made_by is not None and made_by.op_type == kind:
            made_by = made_by.inputs[0].producer()
    if made_by is None or made_by.op_type != "Cast":
        return None
    return made_by.inputs[0] if made_by.inputs[0].dtype in _rounded_types() else None


def _is_dynamic_scale(value: Any) -> bool:
    made_by = None if value is None else value.producer()
    if made_by is None or made_by.op_type != "DynamicQuantizeLinear":
        return False
    return value is made_by.outputs[1]


def _rounded_types() -> tuple[Any, ...]:
    import onnx_ir

    kinds = onnx_ir.DataType
    return (*(kinds.INT4, kinds.UINT4), *(kinds.INT8, kinds.UINT8, kinds.INT16, kinds.UINT16))


def _origin(value: Any) -> Any:
    """Return the table in which scales are looked up, if they are not constants themselves."""
    while value.producer() is not None and value.producer().op_type in _MOVERS:
        value = value.producer().inputs[0]
    return value


def _is_trained(tensor: Any) -> bool:
    """Whether an initializer contains weights: shapes and indices are 64-bit integers."""
    return bool(tensor.dtype.is_floating_point() or tensor.dtype.bitwidth <= 32)
