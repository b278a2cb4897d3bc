import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.pruning.sensitivity_shares import Stock, passing_ratio, share_removals

EXAMPLES = settings(max_examples=300, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ({0.1: 0.9, 0.5: 0.88, 0.9: 0.86}, 0.9),  # all pass: the largest tried
        ({0.1: 0.5, 0.5: 0.9}, 0.0),  # the smallest fails: nothing, whatever follows
        ({0.2: 0.9, 0.4: 0.8}, 0.3),  # half way to the limit of 0.85
        ({0.2: 0.85, 0.4: 0.0}, 0.2),  # just passes
        ({0.2: 0.9, 0.4: math.nan}, 0.2),
        ({0.2: 0.9, 0.4: -math.inf}, 0.2),
        ({0.2: math.nan}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_last_passing_ratio_is_interpolated_to_the_threshold(curve, expected):
    assert passing_ratio(curve, 0.9, 0.05) == pytest.approx(expected)
    mirrored = {sparsity: -metric for sparsity, metric in curve.items()}
    assert passing_ratio(mirrored, -0.9, 0.05, "minimize") == pytest.approx(expected)


def stock(unit):
    return st.builds(
        lambda filters, gone, ratio, cap: Stock(
            filters * unit,
            min(gone, filters) * unit,
            unit,
            max(round(filters * unit * cap), min(gone, filters) * unit),
            ratio,
        ),
        st.integers(1, 60),
        st.integers(0, 60),
        st.sampled_from([0.0, 0.1, 0.35, 0.9]),
        st.floats(0, 1),
    )


@EXAMPLES
@given(stocks=st.lists(stock(1), min_size=1, max_size=6), budget=st.integers(0, 300))
def test_single_weights_add_up_to_the_budget_as_far_as_limits_allow(stocks, budget):
    named = {str(i): s for i, s in enumerate(stocks)}
    units = share_removals(named, budget)
    assert sum(units.values()) == min(budget, sum(s.limit for s in stocks))
    assert all(0 <= units[name] <= s.limit for name, s in named.items())


@EXAMPLES
@given(data=st.data(), budget=st.integers(0, 2000))
def test_filters_come_within_one_of_the_budget_and_never_above(data, budget):
    sizes = data.draw(st.lists(st.sampled_from([1, 3, 9, 27, 64]), min_size=1, max_size=5))
    named = {str(i): data.draw(stock(unit)) for i, unit in enumerate(sizes)}
    units = share_removals(named, budget)
    given_ = sum(count * named[name].unit for name, count in units.items())
    assert given_ <= budget
    spare = [s.unit for name, s in named.items() if units[name] < s.limit]
    assert not spare or budget - given_ < max(spare)


def test_shares_follow_ratio_times_what_is_left():
    stocks = {"a": Stock(1000, 0, 1, 1000, 0.1), "b": Stock(1000, 500, 1, 1000, 0.4)}
    assert share_removals(stocks, 300) == {"a": 100, "b": 200}


def test_a_full_layer_passes_its_rest_on():
    stocks = {"a": Stock(100, 0, 1, 10, 0.9), "b": Stock(100, 0, 1, 100, 0.1)}
    assert share_removals(stocks, 60) == {"a": 10, "b": 50}
