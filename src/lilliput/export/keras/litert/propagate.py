"""Propagate integers through operators that only move or select values."""

from __future__ import annotations

from typing import Any

from lilliput.export.keras.litert.draft import Draft, Scales

# The position of the input that they move; the other inputs are shapes and similar.
_MOVERS = {
    **dict.fromkeys(("RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "MAX_POOL_2D", "PAD"), 0),
    **dict.fromkeys(("MIRROR_PAD", "STRIDED_SLICE", "SLICE", "GATHER", "TILE", "REDUCE_MAX"), 0),
    **dict.fromkeys(("RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH"), 0),
    **dict.fromkeys(("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), 0),
    "SPLIT": 1,
}
_JOINERS = frozenset({"CONCATENATION", "PACK"})
# Operators before which tensors may be rounded instead of after, so that the preceding layer is
# quantized.
_LIFTED = (
    *("RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "MAX_POOL_2D", "REDUCE_MAX"),
    "BATCH_TO_SPACE_ND",
)


def propagate(draft: Draft) -> bool:
    """Let operators that move values move integers, and remove duplicate quantization."""
    changed = False
    for operator in list(draft.operators):
        if not draft.holds(operator):
            continue  # removed meanwhile
        kind = draft.kind(operator)
        if kind == "QUANTIZE":
            changed |= _quantize_once(draft, operator)
        elif kind == "SHAPE" and (found := draft.source(operator.inputs[0])) is not None:
            operator.inputs = [found]
        elif kind in _MOVERS or kind in _JOINERS:
            changed |= _move(draft, operator) or _lift(draft, operator)
    return changed


def _lift(draft: Draft, operator: Any) -> bool:
    """Quantize before an operator that moves numbers, if all of its results are quantized."""
    if draft.kind(operator) not in _LIFTED or not _is_plain(operator):
        return False
    source, output = operator.inputs[0], operator.outputs[0]
    wanted = quantized_to(draft, output)
    is_alone = draft.readers(source) == [operator] and source not in draft.graph.outputs
    if wanted is None or not is_alone or draft.dtype(source) != "float32":
        return False
    integers = draft.add_tensor(f"{draft.name(source)}_int8", source, "int8", wanted)
    draft.insert_before(operator, draft.make("QUANTIZE", [source], [integers]))
    operator.inputs[0] = integers
    take_output(draft, operator)
    return True


def quantized_to(draft: Draft, index: int) -> Scales | None:
    """Return the scales to which a tensor is quantized, or None if it is read as floats."""
    readers = draft.readers(index)
    if not readers or index in draft.graph.outputs:
        return None
    if any(draft.kind(reader) != "QUANTIZE" for reader in readers):
        return None
    scales = [draft.scales(reader.outputs[0]) for reader in readers]
    first = scales[0]
    is_one = first is not None and all(x is not None and x.is_same(first) for x in scales)
    return first if is_one else None


def take_output(draft: Draft, operator: Any) -> None:
    """Let an operator produce the outputs of the quantizers that follow it."""
    first, *others = draft.readers(operator.outputs[0])
    for other in others:
        draft.replace(other.outputs[0], first.outputs[0])
        draft.remove(other)
    draft.remove(first)
    operator.outputs = list(first.outputs)
    draft.takes_integers(operator)


def _quantize_once(draft: Draft, operator: Any) -> bool:
    """Reuse integers that already have the right scale; otherwise requantize them."""
    source, output = draft.source(operator.inputs[0]), operator.outputs[0]
    wanted = draft.scales(output)
    first = next(x for x in draft.readers(operator.inputs[0]) if draft.kind(x) == "QUANTIZE")
    known = draft.scales(first.outputs[0])
    if first is not operator and known is not None and wanted is not None and known.is_same(wanted):
        draft.replace(output, first.outputs[0])
        draft.remove(operator)
        return True
    if source is None:
        return False
    held = draft.scales(source)
    if held is not None and wanted is not None and held.is_same(wanted):
        draft.replace(output, source)
        draft.remove(operator)
    else:
        operator.inputs = [source]
        draft.takes_integers(operator)
    return True


def _move(draft: Draft, operator: Any) -> bool:
    kind = draft.kind(operator)
    positions = range(len(operator.inputs)) if kind in _JOINERS else [_MOVERS[kind]]
    if not _is_plain(operator):
        return False
    sources = [draft.source(operator.inputs[position]) for position in positions]
    scales = [None if x is None else draft.scales(x) for x in sources]
    first = scales[0]
    if first is None or any(x is None or not x.is_same(first) for x in scales):
        return False
    for position, source in zip(positions, sources, strict=True):
        operator.inputs[position] = source
    draft.takes_integers(operator)
    for i, output in enumerate(operator.outputs):
        integers = draft.add_tensor(f"{draft.name(output)}_int8", output, "int8", first)
        operator.outputs[i] = integers
        draft.insert_after(operator, draft.make("DEQUANTIZE", [integers], [output]))
    return True


def _is_plain(operator: Any) -> bool:
    """Whether the operator does nothing else to the values, such as an activation."""
    return not getattr(operator.builtinOptions, "fusedActivationFunction", 0)
