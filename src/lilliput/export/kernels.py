"""Find the kernels that ONNX Runtime executes, from the graph it has optimized."""

from __future__ import annotations

import re
from pathlib import Path

import onnx_ir as ir

from lilliput.export.passes.graph import LAYERS, layers_of, only_reader
from lilliput.frameworks.exporting.layer import Layer

INTEGER_KERNELS = frozenset(
    {
        "QLinearConv",
        "ConvInteger",
        "QGemm",
        "QLinearMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "MatMulNBits",
        "QAttention",
    }
)
_FUSED = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid"})
_DEFAULT = "onnxruntime has no integer kernel for this combination of types"


def read_kernels(path: str | Path, layers: list[Layer], graph: ir.Graph) -> None:
    """Record for each layer of a graph the kernel that the runtime uses."""
    import onnx

    nodes = onnx.load(str(path), load_external_data=False).graph.node
    owners = owners_of(graph)
    kernels: dict[str, str] = {}
    for node in nodes:
        names = {node.name, plain_name(node.name)}
        if node.op_type in LAYERS:  # a blocked convolution is named after its output
            names |= {owners[x] for x in {plain_name(node.name), *node.output} if x in owners}
        for name in names:
            known = kernels.get(name)
            if known is None or (known not in INTEGER_KERNELS and node.op_type in INTEGER_KERNELS):
                kernels[name] = node.op_type
    for layer in layers:
        layer.kernel = kernels.get(layer.name, "")
        layer.integer = layer.kernel in INTEGER_KERNELS
        if layer.integer:
            layer.reason = ""
        elif not layer.reason:
            layer.reason = _DEFAULT


def owners_of(graph: ir.Graph) -> dict[str, str]:
    """Return the layer that produces each tensor, directly or with the activation fused into it."""
    found: dict[str, str] = {}
    for node in layers_of(graph):
        value: ir.Value | None = node.outputs[0]
        while value is not None:
            found[str(value.name)] = str(node.name)
            reader = only_reader(value)
            is_fused = reader is not None and reader.op_type in _FUSED
            value = reader.outputs[0] if reader is not None and is_fused else None
    return found


def plain_name(name: str) -> str:
    """Return a node's own name, without additions by fusions and changes of layout."""
    return re.sub(r"(_token_\d+|_nchwc|/\w+Fusion/?)+$", "", name.removeprefix("fused "))
