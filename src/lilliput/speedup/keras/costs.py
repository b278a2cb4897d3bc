"""What a Keras model costs with some of its channels removed: counted from labels."""

from __future__ import annotations

from math import prod

from lilliput.backends.keras.discover import cells_of
from lilliput.backends.keras.graph import Node
from lilliput.backends.keras.variables import raw
from lilliput.graph.labels import Flags
from lilliput.ops.macs import recurrent_macs
from lilliput.speedup.keras.analysis import Analysis
from lilliput.speedup.keras.walk import kind_of


def count_parameters(analysis: Analysis, removed: Flags) -> int:
    """Return the number of trained weights, those that the graph never reads included."""
    total = 0
    for name in analysis.tensors.trained:
        value = analysis.axes.get(name)
        shape = tuple(analysis.tensors.variables[name].shape)
        total += prod(shape if value is None else analysis.sizes(value, removed))
    return total


def count_macs(analysis: Analysis, removed: Flags) -> int:
    """Return the multiply-accumulates of convolutions, dense and recurrent layers, for a batch of one."""
    return sum(_node_macs(analysis, node, removed) for node in analysis.graph.nodes)


def _node_macs(analysis: Analysis, node: Node, removed: Flags) -> int:
    kind, layer = kind_of(node.operation), node.operation

    def kernel(attribute: str) -> int:
        found = analysis.tensors.find(layer, attribute)
        value = None if found is None else analysis.axes.get(found[0])
        return 0 if value is None else prod(analysis.sizes(value, removed))

    def positions(number: int) -> int:
        """Return at how many places a kernel is applied."""
        value = analysis.walk.values[number]
        sizes = analysis.sizes(value, removed)
        at = 1 if getattr(layer, "data_format", "") == "channels_first" else len(sizes) - 1
        return prod(n for d, n in enumerate(sizes) if d not in (0, at))

    if kind in ("Dense", "Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D"):
        return positions(node.outputs[0]) * kernel("kernel")
    if kind in ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"):
        return positions(node.inputs[0]) * kernel("kernel")
    if kind in ("SeparableConv1D", "SeparableConv2D"):
        parts = kernel("depthwise_kernel") + kernel("pointwise_kernel")
        return positions(node.outputs[0]) * parts
    if cells := cells_of(layer):
        held = [raw(cell, name) for cell in cells for name in ("kernel", "recurrent_kernel")]
        return recurrent_macs(positions(node.inputs[0]), (prod(x.shape) for x in held))
    return 0  # what is inside of layers that are made of layers is not counted
