"""Union-find over arrays, against a dictionary of sets; reasons; refinements."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.graph.labels import Labels

COUNT = 12  # labels 1 … 12; 0 is "no channel"


class Naive:
    """The same in one set per class, one entry at a time."""

    def __init__(self):
        self.classes = {x: {x} for x in range(1, COUNT + 1)}
        self.pins = {x: [] for x in range(1, COUNT + 1)}  # numbers of events that pinned the label
        self.reasons = []

    def pin(self, labels, reason):
        self.reasons.append(reason)
        for x in labels:
            if x:
                self.pins[x].append(len(self.reasons) - 1)

    def unite(self, a, b, reason):
        fixed = [y or x for x, y in zip(a, b, strict=True) if 0 in (x, y)]
        if fixed:
            self.pin(fixed, reason)
        for x, y in zip(a, b, strict=True):
            if x and y:
                both = self.classes[x] | self.classes[y]
                self.classes.update(dict.fromkeys(both, both))

    def reason(self, x):
        events = [event for member in self.classes[x] for event in self.pins[member]]
        return self.reasons[min(events)] if events else ""


@st.composite
def events(draw):
    label = st.integers(0, COUNT)
    size = draw(st.integers(1, 6))
    first = draw(st.lists(label, min_size=size, max_size=size))
    if draw(st.integers(0, 3)) == 0:
        return first, None
    return first, draw(st.lists(label, min_size=size, max_size=size))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(events(), max_size=12))
def test_classes_and_reasons_equal_those_of_a_dictionary_of_sets(listed):
    labels, naive = Labels(), Naive()
    everything = labels.fresh("all", COUNT)
    assert everything.tolist() == list(range(1, COUNT + 1))
    for number, (a, b) in enumerate(listed):
        if b is None:
            labels.pin(np.array(a), f"event {number}")
            naive.pin(a, f"event {number}")
        else:
            labels.unite(np.array(a), np.array(b), f"event {number}")
            naive.unite(a, b, f"event {number}")
    roots = labels.find(everything)
    for x in everything:
        members = set(everything[roots == roots[x - 1]].tolist())
        assert members == naive.classes[x]
        assert labels.reason(int(x)) == naive.reason(int(x))
    pinned = [naive.reason(int(x)) != "" for x in everything]
    assert labels.is_pinned(everything).tolist() == pinned


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.permutations(range(1, 9)), st.integers(0, 7))
def test_a_chain_of_unions_in_any_order_is_one_class(order, pinned):
    labels = Labels()
    everything = labels.fresh("all", 8)
    for x, y in pairwise(order):
        labels.unite(np.array([x]), np.array([y]), "")
    assert len(set(labels.find(everything).tolist())) == 1
    labels.pin(everything[pinned : pinned + 1], "because")
    assert [labels.reason(int(x)) for x in everything] == ["because"] * 8


def test_no_channel_is_pinned_from_the_start_and_never_joins_a_class():
    labels = Labels()
    a, b = labels.fresh("a", 1), labels.fresh("b", 1)
    zero = np.zeros(1, np.int64)
    labels.unite(a, zero, "met an input")
    labels.unite(zero, b, "met another")
    assert labels.reason(0) == "not a channel"
    assert [labels.reason(int(x)) for x in (a[0], b[0])] == ["met an input", "met another"]
    assert labels.find(a)[0] != labels.find(b)[0]


def test_the_first_reason_stays_also_when_classes_join():
    labels = Labels()
    a, b, c = labels.fresh("all", 3)
    labels.pin(np.array([c]), "first")
    labels.pin(np.array([a]), "second")
    labels.pin(np.array([a, c]), "third")
    labels.unite(np.array([a, b]), np.array([b, c]), "")
    assert {labels.reason(int(x)) for x in (a, b, c)} == {"first"}


def test_fresh_labels_belong_to_their_key_and_outlive_a_restart():
    labels = Labels()
    a, b = labels.fresh("a", 3), labels.fresh(("b", 0), 2000)  # more than it starts with
    assert not set(a.tolist()) & set(b.tolist())
    assert 0 not in a
    assert labels.count == 2004
    labels.unite(a[:2], a[1:], "")
    labels.pin(b, "")
    labels.restart()
    assert labels.fresh("a", 3).tolist() == a.tolist()
    assert labels.find(a).tolist() == a.tolist()
    assert not labels.is_pinned(b).any()
    assert labels.is_pinned(np.array([0])).all()


# -- refinement ------------------------------------------------------------------------------------


def gone(labels, where, removed):
    """Return which indices disappear: those with any removed label in their tuple."""
    flags = np.zeros(labels.count, bool)
    flags[labels.find(np.array(sorted(removed), np.int64))] = True
    flags[0] = False
    return np.any([flags[labels.find(column)] for column in labels.expand(where)], axis=0)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(2, 4), st.integers(2, 4), st.data())
def test_an_index_of_a_grid_goes_if_its_row_or_its_column_goes(height, width, data):
    labels = Labels()
    grid = labels.fresh("grid", height * width)
    rows, columns = labels.fresh("rows", height), labels.fresh("columns", width)
    at = np.indices((height, width)).reshape(2, -1)
    labels.refine(grid, [rows[at[0]], columns[at[1]]], "")
    assert labels.refined
    labels.restart()
    assert not labels.refined
    removed = data.draw(st.sets(st.sampled_from([*rows.tolist(), *columns.tolist()])))
    expected = [
        bool(rows[i // width] in removed or columns[i % width] in removed)
        for i in range(height * width)
    ]
    assert gone(labels, grid, removed).tolist() == expected


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.permutations(range(6)), st.integers(0, 5))
def test_labels_of_one_class_are_refined_alike(order, removed):
    labels = Labels()
    a, b, rest = labels.fresh("a", 6), labels.fresh("b", 6), labels.fresh("rest", 2)
    labels.unite(a, b[list(order)], "")
    rows, columns = labels.fresh("rows", 2), labels.fresh("columns", 3)
    at = np.indices((2, 3)).reshape(2, -1)
    labels.refine(a, [rows[at[0]], columns[at[1]]], "")
    labels.restart()
    unit = [*rows, *columns][removed % 5]
    lost = gone(labels, a, {unit})
    assert gone(labels, b, {unit})[list(order)].tolist() == lost.tolist()
    assert [x.tolist() for x in labels.expand(rest)] == [rest.tolist()]
    mixed = np.concatenate([a[:1], rest, [0]])
    assert gone(labels, mixed, {rows[0], rest[1]}).tolist() == [True, False, True, False]


def test_a_factor_can_be_refined_again():
    labels = Labels()
    grid, outer = labels.fresh("grid", 8), labels.fresh("outer", 4)
    inner, high, low = labels.fresh("inner", 2), labels.fresh("high", 2), labels.fresh("low", 2)
    labels.refine(grid, [np.repeat(outer, 2), np.tile(inner, 4)], "")
    labels.restart()
    labels.refine(outer, [np.repeat(high, 2), np.tile(low, 2)], "")
    labels.restart()
    assert len(labels.expand(grid)) == 3
    for unit, expected in [
        (high[1], [0, 0, 0, 0, 1, 1, 1, 1]),
        (low[1], [0, 0, 1, 1, 0, 0, 1, 1]),
        (inner[1], [0, 1, 0, 1, 0, 1, 0, 1]),
    ]:
        assert gone(labels, grid, {unit}).astype(int).tolist() == expected


def test_refining_pinned_labels_pins_their_factors():
    labels = Labels()
    grid, rows, columns = labels.fresh("grid", 4), labels.fresh("r", 2), labels.fresh("c", 2)
    labels.pin(grid[:1], "why")
    labels.refine(grid, [np.repeat(rows, 2), np.tile(columns, 2)], "grid")
    assert labels.is_pinned(rows).tolist() == labels.is_pinned(columns).tolist() == [True, False]


def test_a_class_at_two_places_of_a_grid_ties_its_rows_and_columns():
    labels = Labels()
    grid, rows, columns = labels.fresh("grid", 4), labels.fresh("r", 2), labels.fresh("c", 2)
    labels.unite(grid[:1], grid[3:], "")  # (0, 0) is (1, 1)
    labels.refine(grid, [np.repeat(rows, 2), np.tile(columns, 2)], "")
    assert len(set(labels.find(rows).tolist())) == 1
    assert len(set(labels.find(columns).tolist())) == 1


def test_refining_by_itself_pins():
    labels = Labels()
    grid, rows = labels.fresh("grid", 4), labels.fresh("r", 2)
    labels.refine(grid, [np.repeat(rows, 2), grid], "a product with itself")
    assert not labels.refined
    assert {labels.reason(int(x)) for x in (*grid, *rows)} == {"a product with itself"}


def test_refining_twice_without_expanding_is_an_error():
    labels = Labels()
    grid, rows, columns = labels.fresh("grid", 4), labels.fresh("r", 2), labels.fresh("c", 2)
    labels.refine(grid, [np.repeat(rows, 2), np.tile(columns, 2)], "")
    with pytest.raises(ValueError, match="refined already"):
        labels.refine(grid, [np.repeat(rows, 2), np.tile(columns, 2)], "")
