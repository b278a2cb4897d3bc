"""Which kernels ONNX Runtime executes: read from the graph it has optimized."""

from __future__ import annotations

import re
from pathlib import Path

from lilliput.export.layer import Layer

_INTEGER = frozenset(
    {
        "QLinearConv",
        "ConvInteger",
        "QGemm",
        "QLinearMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "MatMulNBits",
        "QAttention",
    }
)
_DEFAULT = "onnxruntime has no integer kernel for this combination of types"


def read_kernels(path: str | Path, layers: list[Layer]) -> None:
    """Enter into each layer what the runtime made of it."""
    import onnx

    nodes = onnx.load(str(path), load_external_data=False).graph.node
    kernels: dict[str, str] = {}
    for node in nodes:
        for name in {node.name, _plain(node.name)}:
            known = kernels.get(name)
            if known is None or (known not in _INTEGER and node.op_type in _INTEGER):
                kernels[name] = node.op_type
    for layer in layers:
        layer.kernel = kernels.get(layer.name, "")
        layer.integer = layer.kernel in _INTEGER
        if layer.integer:
            layer.reason = ""
        elif not layer.reason:
            layer.reason = _DEFAULT


def _plain(name: str) -> str:
    """Return a node's own name, without what fusions and changes of layout add to it."""
    return re.sub(r"(_token_\d+|_nchwc|/\w+Fusion/?)+$", "", name.removeprefix("fused "))
