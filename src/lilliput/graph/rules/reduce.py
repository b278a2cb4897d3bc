"""Reductions and ops that compare the entries of a dimension with each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lilliput.graph.axes import Axis
from lilliput.graph.rules.standardize import STANDARDIZED, is_of_weights
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, is_zero, zero

_INFINITE = "masked zeros would give infinite gradients here; sqrt(var + eps) has finite ones"
_SUMS = ("sum", "nansum", "norm", "linalg_vector_norm")
_MEANS = ("mean", "var", "std", "nanmean", "var_mean", "std_mean")


@rule(
    *("sum", "mean", "var", "std", "norm", "linalg_vector_norm", "amax", "amin", "prod", "any"),
    *("all", "logsumexp", "nansum", "nanmean", "var_mean", "std_mean", "argmax", "argmin"),
    *("max", "min", "median", "count_nonzero", "aminmax"),
)
def reduction(walk: Walk, a: SimpleNamespace) -> Any:
    """Drop or shorten dimensions; the effect on channels in them depends on the op."""
    if getattr(a, "other", None) is not None:  # torch.max(a, b) is elementwise
        from lilliput.graph.rules.pointwise import elementwise

        return elementwise(walk, a)
    count = len(a.input.shape)
    dims = getattr(a, "dim", None)
    dims = [dims] if isinstance(dims, int) else (dims or range(count))
    reduced = {d % count for d in dims} if count else set()
    for d in reduced:
        _reduce(walk, a.input.axes[d])
    if walk.op.name in ("std", "std_mean"):
        for d, axis in enumerate(a.input.axes):
            if d not in reduced and is_zero(axis):
                walk.pin(axis, because=_INFINITE)
    keeps = walk.op.name in (*_SUMS, *_MEANS, "amax", "amin", "max", "min")
    kept = []
    for d, axis in enumerate(a.input.axes):
        if d not in reduced:
            kept.append(zero(axis, is_zero(axis) and keeps))
        elif getattr(a, "keepdim", False):
            kept.append(())
    if isinstance(a.shapes, tuple):
        return Value(a.shapes, tuple(kept))
    return [Value(shape, tuple(kept)) for shape in a.shapes]


def _reduce(walk: Walk, axis: Axis) -> None:
    name = walk.op.name
    if name in _SUMS and is_zero(axis):
        return
    if name in _SUMS:
        walk.changes(axis, "a sum over channels")
    elif name in _MEANS and is_of_weights(walk.op.arguments["input"]):
        walk.pin(axis, because=STANDARDIZED)
    elif name in _MEANS:
        walk.changes(axis, "a mean over channels")
    else:
        walk.pin(axis, because="its entries are compared with each other")


@rule(
    *("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"),
    *("sort", "argsort", "topk", "kthvalue", "roll", "cummax", "unfold", "diff"),
    *("index_select", "gather", "take_along_dim", "index_add", "scatter", "scatter_add"),
)
def couples(walk: Walk, a: SimpleNamespace) -> Any:
    """Pin a dimension whose entries depend on each other; other dimensions are unchanged."""
    count = len(a.input.shape)
    named = (getattr(a, name, None) for name in ("dims", "dim", "dimension"))
    dims: Any = next((x for x in named if x is not None and x != []), range(count))
    here = {d % count for d in ([dims] if isinstance(dims, int) else dims)} if count else set()
    walk.pin(*(a.input.axes[d] for d in here), because="its entries depend on each other")
    for other in vars(a).values():
        if isinstance(other, Value) and other is not a.input:
            walk.pin(*other.axes)
    shapes = [a.shapes] if isinstance(a.shapes, tuple) else a.shapes
    values = [_pass(walk, a.input, here, shape) for shape in shapes]
    return values[0] if isinstance(a.shapes, tuple) else values


def _pass(walk: Walk, source: Value, here: set[int], shape: tuple[int, ...]) -> Value:
    axes: list[Axis] = []
    for d in range(len(shape)):
        passes = d < len(source.shape) and d not in here and source.shape[d] == shape[d]
        axes.append(zero(source.axes[d], False) if passes else ())
        if d < len(source.shape) and d not in here and not passes:
            walk.pin(source.axes[d])
    return Value(shape, tuple(axes))
