"""Recurrent layers: a hidden unit goes with its row in every gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lilliput.speedup.axes import FIXED, Axis
from lilliput.speedup.rules.table import rule
from lilliput.speedup.walk import Value, Walk, zero

LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
CELLS = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")


def _unit(walk: Walk, hidden: Axis, x: Axis, weights: list[Value], size: int, key: Any) -> None:
    """Tie one layer in one direction: weights are ``w_ih, w_hh`` and perhaps two biases."""
    walk.same(x, weights[0].axes[1])
    walk.same(hidden, weights[1].axes[1])
    for number, weight in enumerate(weights):
        gates = weight.shape[0] // size
        parts = walk.split(weight.axes[0], (gates, size), (key, number))
        walk.pin(parts[0], because="these are gates")
        walk.same(hidden, parts[1])
    walk.makes(weights[0], 0)
    walk.makes(weights[1], 0)


@rule(*LAYERS)
def recurrent(walk: Walk, a: SimpleNamespace) -> Any:
    """Run several layers, in one direction or two."""
    states = a.hx if isinstance(a.hx, list) else [a.hx]
    step = 4 if a.has_biases else 2
    directions = 2 if a.bidirectional else 1
    if not hasattr(a, "input") or len(a.params) != step * directions * a.num_layers:
        return walk.give_up(walk.node)  # packed sequences and projections
    hidden = states[0].axes[-1]
    size = states[0].shape[-1]
    walk.same(*(state.axes[-1] for state in states))
    x = a.input.axes[-1]
    for layer in range(a.num_layers):
        for direction in range(directions):
            start = (layer * directions + direction) * step
            weights = a.params[start : start + step]
            _unit(walk, hidden, x, weights, size, (layer, direction))
        x = walk.axes.join([hidden] * directions, [size] * directions)
    first, *rest = a.shapes
    output = Value(first, (*a.input.axes[:-1], zero(x)))
    return [output, *(Value(s, (*[FIXED] * (len(s) - 1), zero(hidden))) for s in rest)]


@rule(*CELLS)
def cell(walk: Walk, a: SimpleNamespace) -> Any:
    """Run one step."""
    states = a.hx if isinstance(a.hx, list) else [a.hx]
    hidden, size = states[0].axes[-1], states[0].shape[-1]
    walk.same(*(state.axes[-1] for state in states))
    weights = [x for x in (a.w_ih, a.w_hh, a.b_ih, a.b_hh) if x is not None]
    _unit(walk, hidden, a.input.axes[-1], weights, size, "cell")
    if isinstance(a.shapes, tuple):
        return Value(a.shapes, (*a.input.axes[:-1], zero(hidden)))
    return [Value(shape, (*a.input.axes[:-1], zero(hidden))) for shape in a.shapes]
