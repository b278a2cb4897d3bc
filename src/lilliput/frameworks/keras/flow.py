"""The flow of tensors through a Keras model, for the placement of quantizers."""

from __future__ import annotations

from typing import Any

import keras

from lilliput.frameworks.keras.graph import Node, read_graph
from lilliput.graph.flow import Flow, ModuleCall, Operation

_CLIPS = ("relu", "relu6")
_SAME = (
    *("Flatten", "Reshape", "Permute", "RepeatVector", "Cropping1D", "Cropping2D", "Cropping3D"),
    *("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D"),
    *("GlobalMaxPooling3D", "Identity", "Dropout", "SpatialDropout1D", "SpatialDropout2D"),
    *("SpatialDropout3D", "Squeeze", "ExpandDims", "Transpose", "UpSampling1D"),
)


def flow_of(model: Any, example_inputs: Any = None) -> Flow:
    """Return the flow of tensors through a model, from its graph."""
    graph = read_graph(model, example_inputs)
    operations = tuple(
        Operation(_kind(node), node.inputs, node.outputs, (*node.scopes, node.path))
        if node.path
        else Operation(_kind(node), node.inputs, node.outputs, node.scopes)
        for node in graph.nodes
    )
    calls = tuple(
        ModuleCall(node.path, node.inputs, node.outputs) for node in graph.nodes if node.path
    )
    return Flow(operations, calls)


def _kind(node: Node) -> str:
    """Return the kind of an operation, as defined in :class:`Operation`."""
    operation, name = node.operation, type(node.operation).__name__
    if isinstance(operation, keras.layers.BatchNormalization):
        return "norm"
    if isinstance(operation, keras.layers.Activation):
        return "clip" if getattr(operation.activation, "__name__", "") in _CLIPS else ""
    if isinstance(operation, keras.layers.ReLU):
        is_plain = not operation.negative_slope and not operation.threshold
        return "clip" if is_plain and operation.max_value in (None, 6) else ""
    if name in ("Relu", "Relu6"):
        return "clip"
    if name == "Add":
        return "add"
    return "same" if name in _SAME else ""
