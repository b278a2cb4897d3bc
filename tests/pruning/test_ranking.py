"""Counts, limits, joint ranking and budgets, against plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.errors import AlgorithmError
from lilliput.pruning.ranking import Candidates, take_share, take_until

exact = settings(max_examples=200, deadline=None, derandomize=True)


def make(scores, name="g", removed=None, **limits):
    scores = np.asarray(scores, float)
    none = np.zeros(scores.size, bool)
    return Candidates(name, scores, none if removed is None else np.asarray(removed), **limits)


@exact
@given(
    rows=st.integers(1, 4),
    per_row=st.integers(1, 9),
    channels=st.integers(1, 4),
    round_to=st.integers(1, 8),
    min_kept=st.integers(1, 6),
    count=st.integers(0, 40),
)
def test_the_limit_is_the_largest_legal_number_not_above_what_is_asked(
    rows, per_row, channels, round_to, min_kept, count
):
    size = rows * per_row
    group = make(
        np.arange(size),
        rows=np.arange(size) % rows,
        channels=channels,
        round_to=round_to,
        min_kept=min_kept,
    )

    def is_legal(removed):
        kept = size - removed
        is_rounded = kept * channels % round_to == 0 and kept % rows == 0
        return removed == 0 or (is_rounded and kept >= 1 and kept * channels >= min_kept)

    expected = max(n for n in range(min(count, size) + 1) if is_legal(n))
    assert group.limit(count) == expected


@exact
@given(
    scores=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    rows=st.integers(1, 3),
    data=st.data(),
)
def test_the_smallest_go_in_each_row_and_of_equals_the_last(scores, rows, data):
    scores = scores * rows
    labels = np.arange(len(scores)) % rows
    group = make(scores, rows=labels)
    count = group.limit(data.draw(st.integers(0, len(scores))))
    gone = group.take(count)
    assert gone.sum() == count
    for row in range(rows):
        units = [i for i in range(len(scores)) if labels[i] == row]
        order = sorted(units, key=lambda i: (scores[i], -i))
        assert sorted(order[: count // rows]) == [i for i in units if gone[i]]


def test_what_is_removed_stays_removed():
    group = make([5, 1, 2, 3], removed=[True, False, False, False])
    assert group.take(group.limit(2)).tolist() == [True, True, False, False]
    assert group.take(group.limit(0)).tolist() == [True, False, False, False]


@exact
@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    sparsity=st.floats(0, 0.5),
    seed=st.integers(0, 99),
)
def test_a_total_sparsity_ranks_scores_relative_to_their_layer(sizes, sparsity, seed):
    random = np.random.default_rng(seed)
    groups = [make(random.random(n) + 0.1, f"g{i}") for i, n in enumerate(sizes)]
    removed = take_share(groups, sparsity)
    count = round(sum(sizes) * sparsity)
    ranked = sorted(
        (score / group.scores.mean(), group.name, i)
        for group in groups
        for i, score in enumerate(group.scores)
    )
    assert sum(int(flags.sum()) for flags in removed.values()) == count
    kept_last = {g.name: int(np.argmax(g.scores)) for g in groups}  # one channel always stays
    expected = [(n, i) for _, n, i in ranked if kept_last[n] != i][:count]
    assert sorted(expected) == sorted((n, i) for n, f in removed.items() for i in np.flatnonzero(f))


def test_a_cap_holds_in_each_layer_and_others_make_up_for_it():
    low, high = make([0.1, 0.1, 0.1, 9], "low", most=0.25), make([1, 1, 1, 1.0], "high", most=0.75)
    removed = take_share([low, high], 0.5)
    assert [int(removed[name].sum()) for name in ("low", "high")] == [1, 3]


def test_more_than_the_limits_allow_is_refused():
    with pytest.raises(
        AlgorithmError, match="requests the removal of 3 channels, but the limits .* allow 2"
    ):
        take_share([make([1, 2], "a"), make([1, 2], "b")], 0.75)


@exact
@given(budget=st.floats(0.3, 0.99), round_to=st.sampled_from([1, 2, 4]), seed=st.integers(0, 99))
def test_a_budget_is_met_with_as_few_removals_as_the_order_allows(budget, round_to, seed):
    random = np.random.default_rng(seed)
    sizes = {"a": 8, "b": 12}
    groups = [make(random.random(n), name, round_to=round_to) for name, n in sizes.items()]

    def count(removed):
        kept = {name: n - int(removed.get(name, np.zeros(n)).sum()) for name, n in sizes.items()}
        return 3 * kept["a"] + kept["a"] * kept["b"] + 5 * kept["b"]

    removed = take_until(groups, budget, count, "max_macs", {})
    assert count(removed) <= math.floor(count({}) * budget)
    queue = sorted(((s, g.name) for g in groups for s in g.queue()), key=lambda entry: entry[0])
    costs = []
    for first in range(len(queue) + 1):
        shares = {g.name: sum(1 for _, n in queue[:first] if n == g.name) for g in groups}
        costs.append(count({g.name: g.take(g.limit(shares[g.name])) for g in groups}))
    assert count(removed) == next(c for c in costs if c <= math.floor(count({}) * budget))


def test_a_budget_out_of_reach_says_what_is_within():
    group = make([1, 2, 3, 4], min_kept=2)
    with pytest.raises(AlgorithmError, match=r"max_params 10 allows 10 of 40, .* reach only 20"):
        take_until(
            [group],
            10,
            lambda r: 10 * (4 - int(sum(f.sum() for f in r.values()))),
            "max_params",
            {},
        )


def test_equal_scores_are_taken_from_every_group_alike():
    groups = [
        Candidates(name, np.ones(size), np.zeros(size, bool))
        for name, size in (("a", 32), ("b", 16), ("c", 8))
    ]
    removed = take_share(groups, 0.5)
    assert {name: int(flags.sum()) for name, flags in removed.items()} == {"a": 16, "b": 8, "c": 4}
