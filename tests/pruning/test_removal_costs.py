"""Costs are what NumPy's least squares measures when it refits the layer without the channel."""

import numpy as np

from lilliput.pruning.removal_costs import Reading, removal_costs


def layer(inputs=6, outputs=4, rows=500, seed=0):
    rng = np.random.default_rng(seed)
    mixing = np.eye(inputs) + rng.normal(size=(inputs, inputs)) / 4
    x = rng.normal(size=(rows, inputs)) @ mixing + 3
    weight = rng.normal(size=(inputs, outputs))
    return x, weight


def reading(x, weight, units=None):
    units = np.arange(x.shape[1]) if units is None else units
    return Reading(np.cov(x.T, bias=True), weight @ weight.T, units)


def refitted(x, y, kept):
    design = np.c_[x[:, kept], np.ones(len(x))]
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return (residual**2).sum() / len(x)


def test_the_first_costs_are_those_of_removing_one_channel():
    x, weight = layer()
    expected = [refitted(x, x @ weight, np.delete(np.arange(6), i)) for i in range(6)]
    np.testing.assert_allclose(reading(x, weight).costs(6), expected, rtol=1e-2)


def test_each_cost_is_what_its_turn_adds_to_the_error():
    x, weight = layer()
    costs = removal_costs([reading(x, weight)], 6)
    order = np.argsort(costs, kind="stable")
    gone, before = [], 0.0
    for unit in order[:2]:
        gone.append(unit)
        error = refitted(x, x @ weight, np.delete(np.arange(6), gone))
        np.testing.assert_allclose(costs[unit], error - before, rtol=2e-2)
        before = error


def test_units_of_several_inputs_go_as_a_whole():
    x, weight = layer()
    units = np.array([0, 1, 0, 1, -1, 2])
    found = reading(x, weight, units).costs(3)
    for unit in range(3):
        error = refitted(x, x @ weight, np.flatnonzero(units != unit))
        np.testing.assert_allclose(found[unit], error, rtol=1e-2)


def test_the_costs_of_several_readers_add():
    (x, weight), (_, other) = layer(), layer(outputs=3, seed=1)
    both = reading(x, np.c_[weight, other]).costs(6)
    apart = reading(x, weight).costs(6) + reading(x, other).costs(6)
    np.testing.assert_allclose(both, apart)
