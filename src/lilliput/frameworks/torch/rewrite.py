"""Numbers in a graph that change with its channels: sizes of views, bounds of slices, groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch.nodes import op_name, place
from lilliput.graph.analysis import Analysis, Kept
from lilliput.graph.labels import Flags
from lilliput.graph.walk import Value

_SIZED = {
    **dict.fromkeys(("view", "_unsafe_view", "expand"), "size"),
    "reshape": "shape",
    **dict.fromkeys(("zeros", "ones", "full", "empty", "new_zeros", "new_ones"), "size"),
    **dict.fromkeys(("new_full", "new_empty", "rand", "randn"), "size"),
    "unflatten": "sizes",
}
_SPLITS = ("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")


@dataclass(frozen=True, eq=False)
class Edit:
    """One argument of one node that has to change."""

    node: fx.Node
    argument: str
    old: Any
    new: Any
    target: Any = None  # another op, if this one cannot express it

    def numbers(self) -> list[tuple[int, int]]:
        """Return the pairs of integers that differ."""
        old, new = (
            [x] if not isinstance(x, (list, tuple)) else list(x) for x in (self.old, self.new)
        )
        if len(old) == 1 < len(new) and len(set(new)) == 1:
            new = new[:1]
        pairs = zip(old, new, strict=False)
        return [
            (a, b)
            for a, b in pairs
            if isinstance(a, int) and isinstance(b, int) and a != b and a > 0
        ]


def find_edits(analysis: Analysis, removed: Flags) -> list[Edit]:
    """Return every edit that a removal makes necessary."""
    edits = []
    walk, kept = analysis.walk, Kept(analysis, removed)
    for op in analysis.graph.ops:
        rule, value = _rule(op.source), walk.result(op)
        if rule is not None and value is not None:
            edits += rule(op.source, walk.bind(op), value, kept)
    return edits


_Rule = Callable[[fx.Node, SimpleNamespace, Any, Kept], list[Edit]]


def _rule(node: fx.Node) -> _Rule | None:
    name = op_name(node)
    if name in _SIZED:
        return _sizes
    if name in _SPLITS:
        return _splits
    return _RULES.get(name)


def _sizes(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    argument = _SIZED[op_name(node)]
    old, shape = list(getattr(a, argument)), kept.shape(value)
    if op_name(node) == "unflatten":
        shape = shape[a.dim % len(a.input.shape) :][: len(old)]
        full = list(value.shape[a.dim % len(a.input.shape) :][: len(old)])
    else:
        full = list(value.shape)
    given = [full[i] if n == -1 else n for i, n in enumerate(old)]
    new = [x if n == m else m for x, n, m in zip(old, given, shape, strict=True)]
    if old.count(-1) == 1 and op_name(node) != "expand":
        new[old.index(-1)] = -1
    return [Edit(node, argument, old, new)] if new != old else []


def _repeats(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    before = [1] * (len(value.shape) - len(a.input.shape)) + kept.shape(a.input)
    new = [m // n for n, m in zip(before, kept.shape(value), strict=True)]
    return [Edit(node, "repeats", list(a.repeats), new)] if new != list(a.repeats) else []


def _splits(node: fx.Node, a: SimpleNamespace, values: list[Value], kept: Kept) -> list[Edit]:
    old = [value.shape[a.dim] for value in values]
    new = [kept.size(value, a.dim) for value in values]
    if new == old:
        return []
    target = torch.ops.aten.split_with_sizes.default
    return [Edit(node, "split_sizes", old, new, target)]


def _slice(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    flags = kept.flags(a.input, a.dim)
    if flags.all():
        return []
    size = len(flags)
    start, end, step = slice(a.start, a.end, a.step).indices(size)
    if step != 1:
        raise UnsupportedModelError(
            f"a slice with step {step} over channels, at {place(node)}, cannot be cut."
        )
    new = [int(flags[:start].sum()), int(flags[:end].sum())]
    wanted = [] if a.start is None and start == 0 else [Edit(node, "start", a.start, new[0])]
    wanted += [] if end == size else [Edit(node, "end", a.end, new[1])]
    return [edit for edit in wanted if edit.old != edit.new]


def _groups(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    per_group = a.weight.shape[0 if "transpose" in op_name(node) else 1]
    if a.groups == 1:
        return []
    channels = kept.size(a.input, -(len(a.weight.shape) - 2) - 1)
    if "transpose" in op_name(node):
        new = channels // (per_group // a.groups)
    else:
        new = channels // per_group if per_group == 1 else a.groups
    return [Edit(node, "groups", a.groups, new)] if new != a.groups else []


def _normalized(node: fx.Node, a: SimpleNamespace, value: Any, kept: Kept) -> list[Edit]:
    old = list(a.normalized_shape)
    new = kept.shape(a.input)[-len(old) :]
    return [Edit(node, "normalized_shape", old, new)] if new != old else []


def _norm_groups(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    channels = kept.size(a.input, 1)
    if a.num_groups != a.input.shape[1] or channels == a.num_groups:
        return []
    return [Edit(node, "num_groups", a.num_groups, channels)]


def _scale(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    size = a.query.shape[-1]
    if kept.size(a.query, -1) == size or a.scale is not None:
        return []
    return [Edit(node, "scale", None, 1 / math.sqrt(size))]


def _shuffle(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    shuffled = kept.analysis.walk.shuffled
    trail = next((x for op, x in shuffled.items() if op.source is node), None)
    flags = kept.flags(a.input, 1).reshape(a.groups, -1)
    if trail is None:
        rows = int(flags.any(axis=1).sum())
    else:  # as many groups as before, or as many channels in each
        rows = a.groups if trail.shrinks else int(flags.sum()) // flags.shape[1]
    return [Edit(node, "groups", a.groups, rows)] if rows != a.groups else []


def _narrow(node: fx.Node, a: SimpleNamespace, value: Value, kept: Kept) -> list[Edit]:
    flags = kept.flags(a.input, a.dim)
    if flags.all():
        return []
    first = a.start % len(flags)
    start = int(flags[:first].sum())
    length = int(flags[first : first + a.length].sum())
    edits = [Edit(node, "start", a.start, start), Edit(node, "length", a.length, length)]
    return [edit for edit in edits if edit.old != edit.new]


_RULES: dict[str, _Rule] = {
    "repeat": _repeats,
    "slice": _slice,
    "narrow": _narrow,
    "layer_norm": _normalized,
    "rms_norm": _normalized,
    "group_norm": _norm_groups,
    "scaled_dot_product_attention": _scale,
    "channel_shuffle": _shuffle,
    "native_channel_shuffle": _shuffle,
    **{f"conv{n}d": _groups for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _groups for n in (1, 2, 3)},
}


def find_cause(edits: list[Edit]) -> str:
    """Return why outputs differ if code is not changed, or '' if unknown."""
    for edit in edits:
        if edit.argument == "scale":
            size = round(edit.new**-2)
            return (
                f": attention at {place(edit.node)} divides by the root of the head size by default, "
                f"{size} before the cut and less after it; pass scale={size} ** -0.5 to "
                "scaled_dot_product_attention"
            )
    return ""


def rewrite(edits: list[Edit]) -> None:
    """Apply edits to their graph."""
    for edit in edits:
        node = edit.node
        if edit.target is not None:
            source = node.args[0]
            dim = argument(node, "dim", 0)
            node.target, node.args, node.kwargs = edit.target, (source, list(edit.new), dim), {}
            continue
        names = [x.name for x in node.target._schema.arguments]  # type: ignore[union-attr]
        at = names.index(edit.argument)
        if edit.argument not in node.kwargs and at < len(node.args):
            old = node.args[at]
            new = _merge(old, edit)
            node.args = (*node.args[:at], new, *node.args[at + 1 :])
        else:
            node.kwargs = {**node.kwargs, edit.argument: edit.new}


def _merge(given: Any, edit: Edit) -> Any:
    """Keep symbolic sizes whose number did not change."""
    if not isinstance(edit.new, list):
        return edit.new
    pairs = zip(given, edit.old, edit.new, strict=True)
    merged = [x if old == new else new for x, old, new in pairs]
    computed = [i for i, x in enumerate(given) if isinstance(x, fx.Node) and merged[i] is not x]
    if len(computed) == 1 and -1 not in merged and edit.argument in ("size", "shape"):
        merged[computed[0]] = -1  # a product with a dynamic size, such as batch × heads
    return merged


def argument(node: fx.Node, name: str, default: Any) -> Any:
    """Return the argument of a node by name."""
    names = [x.name for x in node.target._schema.arguments]  # type: ignore[union-attr]
    at = names.index(name)
    return node.args[at] if at < len(node.args) else node.kwargs.get(name, default)


def has_casts(analysis: Analysis) -> bool:
    """Whether the model computes parts of itself in another precision."""
    low = (torch.float16, torch.bfloat16, torch.float32)
    return any(
        x in low
        for node in analysis.graph.source.graph.nodes
        if node.op == "call_function"
        for x in (*node.args, *node.kwargs.values())
    )
