"""Integer weights that a trace slices, joins and transposes before a layer reads them: rearranged once.

torch orders the gates of a recurrent layer differently from ONNX, and traces the change as slices and
a concatenation before each weight. Here the same is applied to the integers, their scales and zero
points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lilliput.export.passes.graph import array_of, integer_attribute
from lilliput.export.passes.integers import Array, Stored, name_of, read


@dataclass(frozen=True, eq=False)
class Moved:
    """Integers of a weight as a layer reads them, each with its own scale and zero point."""

    integers: Array
    scale: Array
    zero_point: Array
    dtype: ir.DataType
    name: str

    @property
    def has_rows(self) -> bool:
        """Whether each row has one scale and one zero point."""
        return all(bool((x == x[..., :1]).all()) for x in (self.scale, self.zero_point))

    @property
    def steps(self) -> Array:
        """The integers as steps from zero."""
        return np.asarray(self.integers - self.zero_point)

    @property
    def row_scales(self) -> Array:
        """The scale of each row."""
        return self.scale[..., 0].astype(np.float32)

    def reals(self) -> Array:
        """Return the real values represented by the integers."""
        return self.steps.astype(np.float32) * self.scale.astype(np.float32)

    def flat(self) -> Stored:
        """Return all rows in one matrix, with one scale per row."""
        width = self.integers.shape[-1]
        integers, scale, zero = (
            x.reshape(-1, width) for x in (self.integers, self.scale, self.zero_point)
        )
        return Stored(integers, scale[:, 0].copy(), zero[:, 0].copy(), self.dtype, 0)


def moved_integers(value: ir.Value | None) -> Moved | None:
    """Return the integer constant behind a value, or None."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return None
    stored = read(value)
    if stored is not None:
        parts = (stored.spread(x) for x in (stored.scale, stored.zero_point))
        scale, zero = (np.broadcast_to(x, stored.integers.shape) for x in parts)
        return Moved(stored.integers, scale, zero, stored.dtype, name_of(node.outputs[0]))
    if node.op_type == "Concat":
        return _joined([moved_integers(x) for x in node.inputs], integer_attribute(node, "axis", 0))
    move = _MOVES.get(node.op_type)
    first = None if move is None else moved_integers(node.inputs[0])
    rest = [array_of(x) for x in node.inputs[1:]]
    if move is None or first is None or any(x is None for x in rest):
        return None
    arrays = (first.integers, first.scale, first.zero_point)
    integers, scale, zero = (np.asarray(move(x, node, *rest)) for x in arrays)
    return Moved(integers, scale, zero, first.dtype, first.name)


def _joined(parts: list[Moved | None], axis: int) -> Moved | None:
    known = [x for x in parts if x is not None]
    if not known or len(known) < len(parts) or len({x.dtype for x in known}) > 1:
        return None
    columns = zip(*((x.integers, x.scale, x.zero_point) for x in known), strict=True)
    integers, scale, zero = (np.concatenate(x, axis) for x in columns)
    return Moved(integers, scale, zero, known[0].dtype, known[0].name)


def _slice(x: Array, node: ir.Node, starts: Array, ends: Array, *more: Array) -> Array:
    axes = more[0] if more else np.arange(len(starts))
    steps = more[1] if len(more) > 1 else np.ones(len(starts), int)
    where = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where[axis] = slice(int(start), int(end), int(step))
    return x[tuple(where)]


_MOVES: dict[str, Callable[..., Array]] = {
    "Identity": lambda x, node: x,
    "Reshape": lambda x, node, shape: x.reshape(shape),
    "Slice": _slice,
    "Squeeze": lambda x, node, axes: x.squeeze(tuple(axes)),
    "Transpose": lambda x, node: x.transpose(node.attributes["perm"].as_ints()),
    "Unsqueeze": lambda x, node, axes: np.expand_dims(x, tuple(axes)),
}
