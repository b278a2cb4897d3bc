"""Recurrent layers: a hidden unit is removed with its row in every gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lilliput.graph.axes import FIXED, Axis
from lilliput.graph.rules.table import rule
from lilliput.graph.walk import Value, Walk, zero


def _unit(walk: Walk, hidden: Axis, x: Axis, weights: list[Value], size: int, key: Any) -> None:
    """Tie one layer in one direction: weights are ``w_ih, w_hh`` and optional biases."""
    walk.same(x, weights[0].axes[1])
    walk.same(hidden, weights[1].axes[1])
    for number, weight in enumerate(weights):
        gates = weight.shape[0] // size
        parts = walk.split(weight.axes[0], (gates, size), (key, number))
        walk.pin(parts[0], because="these are gates")
        walk.same(hidden, parts[1])
    walk.makes(weights[0], 0)
    walk.makes(weights[1], 0)


def _hidden(walk: Walk, a: SimpleNamespace) -> tuple[Axis, int]:
    """Return the axis and the number of hidden units."""
    if not a.states:  # the layer creates zeros itself
        size = a.cells[0][0][1].shape[1]
        return walk.fresh("hidden", size), size
    walk.same(*(state.axes[-1] for state in a.states))
    return a.states[0].axes[-1], a.states[0].shape[-1]


@rule("recurrent")
def recurrent(walk: Walk, a: SimpleNamespace) -> Any:
    """Run several layers, in one direction or two; ``cells`` has the weights of each."""
    if a.cells is None:
        return walk.give_up()  # packed sequences and projections
    hidden, size = _hidden(walk, a)
    x = a.input.axes[-1]
    for layer, directions in enumerate(a.cells):
        for direction, weights in enumerate(directions):
            _unit(walk, hidden, x, weights, size, (layer, direction))
        x = walk.axes.join([hidden] * len(directions), [size] * len(directions))
    first, *rest = a.shapes
    output = Value(first, (*a.input.axes[: len(first) - 1], zero(x)))
    return [output, *(Value(s, (*[FIXED] * (len(s) - 1), zero(hidden))) for s in rest)]


@rule("recurrent_cell")
def cell(walk: Walk, a: SimpleNamespace) -> Any:
    """Run one step."""
    hidden, size = _hidden(walk, a)
    _unit(walk, hidden, a.input.axes[-1], a.cells[0][0], size, "cell")
    if isinstance(a.shapes, tuple):
        return Value(a.shapes, (*a.input.axes[:-1], zero(hidden)))
    return [Value(shape, (*a.input.axes[:-1], zero(hidden))) for shape in a.shapes]
