"""Products that sum over a dimension: linear layers and matrix products."""

from __future__ import annotations

from types import SimpleNamespace

from lilliput.graph.axes import FIXED, Axis
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, is_zero, zero


@rule("linear")
def linear(walk: Walk, a: SimpleNamespace) -> Value:
    """Contract the last dimension; rows of the weight are the new channels."""
    contract(walk, a.input, -1, a.weight, 1)
    if len(a.weight.shape) == 1:
        return Value(a.shapes, a.input.axes[:-1])
    walk.makes(a.weight, 0)
    if a.bias is not None:
        walk.same(a.weight.axes[0], a.bias.axes[0])
    others = tuple(zero(x, is_zero(x) and a.bias is None) for x in a.input.axes[:-1])
    made = zero(a.weight.axes[0], all(x is None or x.is_parameter for x in (a.weight, a.bias)))
    return Value(a.shapes, (*others, made))


def contract(walk: Walk, x: Value, i: int, y: Value, j: int) -> None:
    """Sum over dimension ``i`` of one operand and ``j`` of another."""
    walk.same(x.axes[i], y.axes[j])
    if not (x.is_parameter or y.is_parameter or is_zero(x.axes[i]) or is_zero(y.axes[j])):
        walk.changes(x.axes[i], "a sum over channels")


@rule("matmul")
def matmul(walk: Walk, a: SimpleNamespace) -> Value:
    """Contract, and broadcast the leading dimensions."""
    return product(walk, a.input, a.other, a.shapes)


def product(walk: Walk, x: Value, y: Value, shape: tuple[int, ...]) -> Value:
    """Return ``x @ y``."""
    contract(walk, x, -1, y, max(-2, -len(y.shape)))
    rows, columns = x.axes[-2:-1], y.axes[-1:] if len(y.shape) > 1 else ()
    if rows:
        walk.makes(x, -2)
    if columns:
        walk.makes(y, -1)
    if not (x.is_parameter or y.is_parameter) and len(shape) > 2:
        walk.features += [c.labels for c in walk.axes.tidy(x.axes[-1])]
        walk.features += [c.labels for c in walk.axes.tidy(columns[0] if columns else FIXED)]
    count = len(shape) - len(rows) - len(columns)
    batch = [_batch(walk, x, y, d - count, shape[d]) for d in range(count)]
    return Value(shape, (*batch, *rows, *columns))


def _batch(walk: Walk, x: Value, y: Value, back: int, size: int) -> Axis:
    """Return the axis of a batch dimension of both operands, counted back from the matrix."""
    found = []
    for value in (x, y):
        at = len(value.shape) - 2 + back
        if at >= 0 and (value.shape[at] > 1 or size == 1):
            found.append(value.axes[at])
    walk.same(*found)
    return zero(found[0], any(is_zero(axis) for axis in found)) if found else FIXED


@rule("addmm")
def addmm(walk: Walk, a: SimpleNamespace) -> Value:
    """Contract, then add with broadcasting."""
    result = product(walk, a.mat1, a.mat2, a.shapes)
    axes = list(result.axes)
    for d in range(1, len(a.input.shape) + 1):
        if a.input.shape[-d] > 1:
            walk.same(a.input.axes[-d], axes[-d])
        masked = a.input.is_parameter and a.input.shape[-d] > 1
        axes[-d] = zero(axes[-d], is_zero(axes[-d]) and masked)
    return Value(a.shapes, tuple(axes))


@rule("einsum")
def einsum(walk: Walk, a: SimpleNamespace) -> Value:
    """Share the axis of each letter; letters missing in the result are summed over."""
    equation = a.equation.replace(" ", "")
    if "." in equation or "->" not in equation:
        result: Value = walk.give_up()
        return result
    sources, _, target = equation.partition("->")
    operands = [x for x in a.tensors if isinstance(x, Value)]
    where: dict[str, list[tuple[Value, int]]] = {}
    for letters, operand in zip(sources.split(","), operands, strict=True):
        for d, letter in enumerate(letters):
            if operand.shape[d] > 1:
                where.setdefault(letter, []).append((operand, d))
    between = not any(operand.is_parameter for operand in operands)
    for letter, found in where.items():
        axes = [operand.axes[d] for operand, d in found]
        walk.same(*axes)
        masked = any(operand.is_parameter for operand, _ in found)
        if letter not in target and not masked and not any(is_zero(axis) for axis in axes):
            walk.changes(axes[0], "a sum over channels")
        if between and len(operands) > 1 and (letter not in target or len(found) == 1):
            walk.features += [c.labels for c in walk.axes.tidy(axes[0])]
        if letter in target and len(found) == 1:
            walk.makes(*found[0])
    made = tuple(
        zero(where[x][0][0].axes[where[x][0][1]], all(is_zero(v.axes[d]) for v, d in where[x]))
        if x in where
        else FIXED
        for x in target
    )
    return Value(a.shapes, made)
