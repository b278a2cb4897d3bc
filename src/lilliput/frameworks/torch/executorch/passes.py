"""Turn the captured graph into one that XNNPACK computes with integers; no pass changes any numbers.

In order: batch norms are folded into the preceding weight, padding into the following convolution,
clips without effect are dropped, integers are propagated through operators that only move them, and
weights that no integer kernel reads become float.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from lilliput.frameworks.torch.executorch.capture import (
    DEQUANTIZE,
    DEQUANTIZE_WEIGHT,
    HIGH,
    LOW,
    QUANTIZE,
    Captured,
)

ATEN: Any = torch.ops.aten
Node = Any  # torch.fx.Node, whose arguments have no types
# Operators that multiply by a weight, and the axis of the weight that counts outputs.
LAYERS = {
    ATEN.conv1d.default: 0,
    ATEN.conv2d.default: 0,
    ATEN.conv2d.padding: 0,
    ATEN.conv_transpose2d.input: 1,
    ATEN.linear.default: 0,
}
# They move numbers without computing.
_MOVERS = frozenset(
    {
        *(ATEN.max_pool2d.default, ATEN.flatten.using_ints, ATEN.view.default),
        *(ATEN.reshape.default, ATEN.permute.default, ATEN.transpose.int, ATEN.squeeze.dims),
        *(ATEN.squeeze.dim, ATEN.unsqueeze.default, ATEN.dropout.default),
        *(ATEN.relu.default, ATEN.contiguous.default),
    }
)
_CLIPS = {
    ATEN.relu.default: (0.0, math.inf),
    ATEN.relu_.default: (0.0, math.inf),
    ATEN.relu6.default: (0.0, 6.0),
    ATEN.relu6_.default: (0.0, 6.0),
}
_GIVEN_CLIPS = frozenset({ATEN.hardtanh.default, ATEN.hardtanh_.default, ATEN.clamp.default})
_CONV2D: tuple[Any, ...] = (
    None,
    [1, 1],
    [0, 0],
    [1, 1],
    1,
)  # bias, stride, padding, dilation, groups
_FUSED = frozenset({ATEN.relu.default, ATEN.hardtanh.default})
_REASON = "lilliput_reason"  # in the meta of a layer whose weight became float
_ROOMY = 2.0**30  # largest bias in units of input scale times weight scale, int32 in XNNPACK


def finish(captured: Captured) -> None:
    """Run all passes."""
    graph = captured.module.graph
    _fold_norms(captured)
    _merge_pads(graph)
    _drop_idle_clips(graph)
    _merge_clips(graph)
    _quantize_earlier(graph)
    _carry_integers(graph)
    _give_room(captured)
    _resolve_weights(captured)
    _one_reader_each(graph)
    graph.eliminate_dead_code()
    captured.module.recompile()


def _fold_norms(captured: Captured) -> None:
    """Fold a batch norm into the preceding integer weight; XNNPACK does so for float weights."""
    module, graph = captured.module, captured.module.graph
    for norm in graph.find_nodes(op="call_function", target=ATEN.batch_norm.default):
        layer = norm.args[0]
        weight = layer.args[1] if layer.target in LAYERS and len(layer.users) == 1 else None
        if weight is None or weight.target is not DEQUANTIZE_WEIGHT or len(weight.users) > 1:
            continue
        gamma, beta, mean, var = (value_of(module, x) for x in norm.args[1:5])
        factor = (var.double() + norm.args[7]).rsqrt()
        factor = factor if gamma is None else factor * gamma.double()
        if not _scale_channels(captured, weight, factor, LAYERS[layer.target]):
            captured.notes.append(
                f"{name_of(layer)}: its batch norm could not be folded into the integer weight, so both "
                "stay in floating point."
            )
            continue
        bias = value_of(module, layer.args[2] if len(layer.args) > 2 else None)
        shift = (0.0 if bias is None else bias.double()) - mean.double()
        shift = shift * factor + (0.0 if beta is None else beta.double())
        _set_bias(captured, layer, shift.float())
        norm.replace_all_uses_with(layer)
        graph.erase_node(norm)


def _scale_channels(captured: Captured, weight: Node, factor: Tensor, axis: int) -> bool:
    """Multiply an integer weight by one factor per output channel; False if a sign cannot be flipped."""
    integers, scale = (value_of(captured.module, x) for x in weight.args[:2])
    if weight.args[3] != axis:
        if scale.unique().numel() > 1:
            return False
        scale = scale[:1].expand(len(factor))
    shape = [-1 if i == axis else 1 for i in range(integers.dim())]
    turned = integers.int() * torch.sign(factor).int().reshape(shape)
    if int(turned.max()) > HIGH:
        return False
    size = torch.where(factor == 0, torch.ones_like(factor), factor.abs())
    scaled = (scale.double() * size).float().clamp(min=torch.finfo(torch.float32).tiny)
    _set_weight(captured, weight, turned.to(torch.int8), scaled, axis)
    return True


def _merge_pads(graph: fx.Graph) -> None:
    """Let a convolution pad its input itself, if both sides get the same number of zeros."""
    for node in graph.find_nodes(op="call_function", target=ATEN.conv2d.default):
        pad = node.args[0]
        if not _is_zero_pad(pad) or len(pad.args[1]) != 4:
            continue
        left, right, top, bottom = pad.args[1]
        if (left, top) == (right, bottom):
            given: list[Any] = [*node.args, *_CONV2D[len(node.args) - 2 :]]
            given[0], given[4] = pad.args[0], [given[4][0] + top, given[4][-1] + left]
            node.args = tuple(given)
    graph.eliminate_dead_code()


def _is_zero_pad(node: Node) -> bool:
    """Whether a node pads a tensor with zeros, and has one reader."""
    if node.target is not ATEN.pad.default or len(node.users) != 1 or min(node.args[1]) < 0:
        return False
    given: list[Any] = list(node.args[2:])
    mode, value = given + ["constant", None][len(given) :]
    return mode == "constant" and not value


def _merge_clips(graph: fx.Graph) -> None:
    """Write a clip as one ReLU or Hardtanh, which XNNPACK fuses with the preceding layer."""
    for node in list(graph.nodes):
        bounds = _bounds_of(node)
        if bounds is None:
            continue
        source = node.args[0]
        before = _bounds_of(source) if len(source.users) == 1 else None
        if before is not None:
            bounds = max(bounds[0], before[0]), min(bounds[1], before[1])
            source = source.args[0]
        is_relu = bounds == (0.0, math.inf)
        if is_relu or (math.isfinite(bounds[0]) and math.isfinite(bounds[1])):
            node.target = ATEN.relu.default if is_relu else ATEN.hardtanh.default
            node.args = (source,) if is_relu else (source, *bounds)
    graph.eliminate_dead_code()


def _bounds_of(node: Node) -> tuple[float, float] | None:
    """Return the bounds to which a node clips a tensor, or None."""
    if node.target in _CLIPS:
        return _CLIPS[node.target]
    if node.target not in _GIVEN_CLIPS:
        return None
    low, high = [*node.args[1:3], None, None][:2]
    default = (-1.0, 1.0) if node.target is not ATEN.clamp.default else (-math.inf, math.inf)
    return default[0] if low is None else low, default[1] if high is None else high


def _drop_idle_clips(graph: fx.Graph) -> None:
    """Drop clips of a dequantized tensor at or beyond the ends of its grid."""
    for node in list(graph.nodes):
        bounds = _bounds_of(node)
        if bounds and node.args[0].target is DEQUANTIZE:
            source = node.args[0]
            scale, zero = source.args[1:3]
            if bounds[0] <= (LOW - zero) * scale and (HIGH - zero) * scale <= bounds[1]:
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def _quantize_earlier(graph: fx.Graph) -> None:
    """Quantize before operators that move numbers instead of after: the same integers are moved."""
    for node in reversed(graph.find_nodes(op="call_function", target=QUANTIZE)):
        mover = node.args[0]
        while mover.target in _MOVERS - _FUSED and len(mover.users) == 1:
            source = mover.args[0]
            if source.target is DEQUANTIZE or len(source.users) > 1:
                break
            _insert_pair(graph, source, node.args[1:])
            mover = source


def _insert_pair(graph: fx.Graph, node: Node, parameters: tuple[Any, ...]) -> None:
    """Insert a quantize and dequantize pair for all readers of a tensor."""
    with graph.inserting_after(node):
        integers = graph.call_function(QUANTIZE, (node, *parameters))
    with graph.inserting_after(integers):
        reals = graph.call_function(DEQUANTIZE, (integers, *parameters))
    node.replace_all_uses_with(reals, delete_user_cb=lambda reader: reader is not integers)


def _one_reader_each(graph: fx.Graph) -> None:
    """Give each reader its own dequantize node, which XNNPACK takes as part of a pattern."""
    for node in graph.find_nodes(op="call_function", target=DEQUANTIZE):
        for reader in list(node.users)[1:]:
            with graph.inserting_before(reader):
                own = graph.call_function(DEQUANTIZE, node.args)
            reader.replace_input_with(node, own)


def _carry_integers(graph: fx.Graph) -> None:
    """Requantize on the same grid after operators that move a dequantized tensor: XNNPACK moves integers."""
    for node in list(graph.nodes):
        source = node.args[0] if node.target in _MOVERS else None
        if not isinstance(source, fx.Node) or source.target is not DEQUANTIZE:
            continue
        parameters = source.args[1:]
        if not all(x.target is QUANTIZE and x.args[1:] == parameters for x in node.users):
            _insert_pair(graph, node, parameters)


def _give_room(captured: Captured) -> None:
    """Enlarge the scale of nearly empty filters, if their bias would not fit into 32 bits."""
    module = captured.module
    for layer in [x for x in module.graph.nodes if x.target in LAYERS]:
        source, weight = layer.args[:2]
        bias = value_of(module, layer.args[2] if len(layer.args) > 2 else None)
        source = source.args[0] if _is_zero_pad(source) else source
        if bias is None or source.target is not DEQUANTIZE:
            continue
        if weight.target is not DEQUANTIZE_WEIGHT or weight.args[3] != LAYERS[layer.target]:
            continue
        integers, scale = (value_of(module, x) for x in weight.args[:2])
        wanted = torch.maximum(scale, bias.abs() / (source.args[1] * _ROOMY))
        if not torch.equal(wanted, scale):
            axis = LAYERS[layer.target]
            shape = [-1 if i == axis else 1 for i in range(integers.dim())]
            coarser = (integers * (scale / wanted).reshape(shape)).round().to(torch.int8)
            _set_weight(captured, weight, coarser, wanted, axis)


def _resolve_weights(captured: Captured) -> None:
    """Keep integer weights where a layer computes with them; elsewhere they become float constants.

    XNNPACK's partitioner accepts an integer Linear without an integer output, but computes garbage.
    """
    for weight in captured.module.graph.find_nodes(op="call_function", target=DEQUANTIZE_WEIGHT):
        reasons = {reader: why_float(reader) for reader in weight.users}
        if any(reasons.values()):
            for reader, reason in reasons.items():
                reader.meta[_REASON] = reason or "its weight is read by another layer in float"
            _make_float(captured, weight)


def leave_in_float(captured: Captured, weights: set[str]) -> None:
    """Store the weights with these names in float, because XNNPACK left out their layers."""
    for weight in captured.module.graph.find_nodes(op="call_function", target=DEQUANTIZE_WEIGHT):
        if str(weight.args[0].target) in weights:
            for reader in weight.users:
                reader.meta[_REASON] = "XNNPACK's partitioner left it out"
            _make_float(captured, weight)
    captured.module.graph.eliminate_dead_code()


def _make_float(captured: Captured, weight: Node) -> None:
    """Replace an integer weight by the numbers that it represents."""
    integers, scale = (value_of(captured.module, x) for x in weight.args[:2])
    shape = [-1 if i == weight.args[3] else 1 for i in range(integers.dim())]
    with captured.module.graph.inserting_before(weight):
        plain = _constant(captured, integers * scale.reshape(shape), str(weight.name))
    weight.replace_all_uses_with(plain)


def why_float(layer: Node) -> str:
    """Return why a layer cannot run on integers, or an empty string if it can."""
    if layer.target not in LAYERS:
        return "XNNPACK has no integer kernel for it"
    if _REASON in layer.meta:
        return str(layer.meta[_REASON])
    source, weight = layer.args[:2]
    if not isinstance(weight, fx.Node) or weight.target is not DEQUANTIZE_WEIGHT:
        return "its weight is not quantized symmetrically to 8 bits or less"
    if _is_zero_pad(source):  # XNNPACK's partitioner looks through it
        source = source.args[0]
    if source.target is not DEQUANTIZE:
        return "its input is not quantized"
    if weight.args[3] != LAYERS[layer.target]:
        return "its weight has no scale per output channel"
    readers = list(layer.users)
    if len(readers) == 1 and readers[0].target in _FUSED:
        readers = list(readers[0].users)
    if len(readers) != 1 or readers[0].target is not QUANTIZE:
        return "its output is not quantized"
    return ""


def name_of(node: Node) -> str:
    """Return the path of the module that a node comes from."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return str(path) or str(node.name)


def value_of(module: fx.GraphModule, node: Any) -> Any:
    """Return the tensor behind a node that reads an attribute; None for None."""
    if node is None:
        return None
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value.detach()


def _constant(captured: Captured, tensor: Tensor, name: str) -> Node:
    number = sum(1 for _ in captured.module.buffers())
    key = f"lilliput_{name}_{number}".replace(".", "_")
    captured.module.register_buffer(key, tensor.contiguous())
    return captured.module.graph.get_attr(key)


def _set_weight(
    captured: Captured, weight: Node, integers: Tensor, scale: Tensor, axis: int
) -> None:
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with captured.module.graph.inserting_before(weight):
        held = [
            _constant(captured, x, f"{weight.name}_{name}")
            for x, name in ((integers, "integers"), (scale, "scale"), (zeros, "zero"))
        ]
    weight.args = (*held, axis, *weight.args[4:])


def _set_bias(captured: Captured, layer: Node, bias: Tensor) -> None:
    with captured.module.graph.inserting_before(layer):
        held = _constant(captured, bias, f"{layer.name}_bias")
    layer.args = (*layer.args[:2], held, *layer.args[3:])
