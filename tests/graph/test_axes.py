"""Axes split, merge and meet: what goes on one side goes on the other, and nothing else."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.graph.axes import FIXED, Axes, Column
from lilliput.graph.labels import Labels

PASSES = 8


def settle(program):
    """Run a program on axes until nothing needs refining; return the axes and its result."""
    labels = Labels()
    for number in range(PASSES):
        labels.restart()
        labels.may_refine = number < PASSES - 1
        axes = Axes(labels)
        axes.reason = "the op"
        result = program(axes)
        if not labels.refined:
            return axes, result
    raise AssertionError(f"not settled in {PASSES} passes")


def lost(axes, axis, root, size):
    """Return which indices of an axis go with one class."""
    flags = np.zeros(size, bool)
    for column in axes.tidy(axis):
        flags |= axes.roots(column) == root
    return tuple(np.flatnonzero(flags).tolist())


def classes(axes, *listed):
    """Return every class that can be removed from these axes."""
    found = {int(r) for axis in listed for c in axes.tidy(axis) for r in axes.roots(c)}
    return sorted(found - {0})


def atoms(axes, named):
    """Return what each removable class takes out of each axis: (name, indices) pairs."""
    found = set()
    for root in classes(axes, *(axis for axis, _ in named.values())):
        takes = {name: lost(axes, axis, root, size) for name, (axis, size) in named.items()}
        found.add(frozenset((name, where) for name, where in takes.items() if where))
    return found


# -- recipes: how an axis of a given length comes about ----------------------------------------------

LENGTH = 12


@st.composite
def recipes(draw):
    kind = draw(
        st.sampled_from(["fresh", "fresh", "product", "half", "joined", "reversed", "pinned"])
    )
    if kind == "product":
        return kind, draw(st.sampled_from([(2, 6), (3, 4), (4, 3), (6, 2), (2, 2, 3), (3, 2, 2)]))
    if kind == "half":  # one factor of a product is no channel
        return kind, draw(st.sampled_from([(2, 6), (3, 4), (4, 3), (6, 2)]))
    if kind == "joined":
        return kind, draw(st.sampled_from([(5, 7), (6, 6), (4, 8)]))
    if kind == "pinned":
        return kind, draw(st.sets(st.integers(0, LENGTH - 1), max_size=3))
    return kind, None


def cook(axes, recipe, name):
    """Return the axis of a recipe, and the fresh axes in it by name with their sizes."""
    kind, how = recipe
    if kind in ("product", "half", "joined"):
        parts = {(name, k): (axes.fresh((name, k), n), n) for k, n in enumerate(how)}
        if kind == "half":
            parts[name, 1] = (FIXED, how[1])
        put = axes.join if kind == "joined" else axes.merge
        return put([axis for axis, _ in parts.values()], how), parts
    axis = axes.fresh(name, LENGTH)
    if kind == "pinned":
        axes.labels.pin(axis[0].labels[sorted(how)], "output")
    made = axes.take(axis, slice(None, None, -1)) if kind == "reversed" else axis
    return made, {name: (axis, LENGTH)}


def meet(listed, pairs):
    """Return a program that unifies pairs of axes, numbered."""

    def program(axes):
        cooked = [cook(axes, recipe, name) for name, recipe in enumerate(listed)]
        for i, j in pairs:
            axes.unify(cooked[i][0], cooked[j][0])
        parts = {name: part for _, made in cooked for name, part in made.items()}
        return [axis for axis, _ in cooked], parts

    return program


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(recipes(), min_size=2, max_size=4), st.data())
def test_unified_axes_lose_the_same_indices(listed, data):
    number = st.integers(0, len(listed) - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=4))
    axes, (made, _) = settle(meet(listed, pairs))
    for i, j in pairs:
        for root in classes(axes, made[i], made[j]):
            assert lost(axes, made[i], root, LENGTH) == lost(axes, made[j], root, LENGTH)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(recipes(), recipes())
def test_unify_is_symmetric(a, b):
    forward, (_, parts) = settle(meet([a, b], [(0, 1)]))
    backward, (_, same) = settle(meet([a, b], [(1, 0)]))
    assert atoms(forward, parts) == atoms(backward, same)


def test_unifying_fresh_axes_ties_index_to_index():
    axes, (_, parts) = settle(meet([("fresh", None), ("reversed", None)], [(0, 1)]))
    expected = {frozenset([(0, (i,)), (1, (LENGTH - 1 - i,))]) for i in range(LENGTH)}
    assert atoms(axes, parts) == expected


def test_unifying_with_a_product_makes_a_grid():
    axes, (_, parts) = settle(meet([("fresh", None), ("product", (3, 4))], [(0, 1)]))
    rows = {frozenset([((1, 0), (r,)), (0, tuple(range(4 * r, 4 * r + 4)))]) for r in range(3)}
    columns = {frozenset([((1, 1), (c,)), (0, tuple(range(c, 12, 4)))]) for c in range(4)}
    assert atoms(axes, parts) == rows | columns


def test_unifying_equal_products_ties_factor_to_factor():
    axes, (_, parts) = settle(meet([("product", (3, 4))] * 2, [(0, 1)]))
    rows = {frozenset([((0, 0), (r,)), ((1, 0), (r,))]) for r in range(3)}
    columns = {frozenset([((0, 1), (c,)), ((1, 1), (c,))]) for c in range(4)}
    assert atoms(axes, parts) == rows | columns


def test_unifying_with_what_has_no_channels_pins_with_the_reason_of_the_op():
    def program(axes):
        axis = axes.fresh("a", 4)
        axes.unify(axis, FIXED)
        return axis

    axes, axis = settle(program)
    assert {axes.labels.reason(int(x)) for x in axis[0].labels} == {"the op"}
    assert axes.tidy(axis) == FIXED


# -- split, merge, take, join -------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=4), st.data())
def test_splitting_undoes_merging(dims, data):
    sizes = [n for n, _ in dims]

    def program(axes):
        given_ = [axes.fresh(d, n) if free else FIXED for d, (n, free) in enumerate(dims)]
        for axis in given_:
            if axis and pinned:
                axes.labels.pin(axis[0].labels[:1], "output")
        return given_, axes.split(axes.merge(given_, sizes), sizes, "key")

    pinned = data.draw(st.booleans())
    axes, (before, after) = settle(program)
    for a, b in zip(before, after, strict=True):
        a, b = axes.tidy(a), axes.tidy(b)
        assert [axes.roots(c).tolist() for c in a] == [axes.roots(c).tolist() for c in b]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    recipes(),
    st.sampled_from([(2, 6), (3, 4), (4, 3), (2, 2, 3), (1, 12), (12, 1), (3, 2, 2), (2, 3, 2)]),
    st.sampled_from([None, (2, 6), (4, 3)]),
)
def test_merging_undoes_splitting(recipe, sizes, other):
    def program(axes):
        axis, _ = cook(axes, recipe, "a")
        if other is not None:
            axes.split(axis, other, "other")
        pieces = axes.split(axis, sizes, "key")
        return axis, axes.merge(pieces, sizes), pieces

    axes, (axis, merged, pieces) = settle(program)
    for root in classes(axes, axis, merged):
        assert lost(axes, axis, root, LENGTH) == lost(axes, merged, root, LENGTH)
    for piece, size in zip(pieces, sizes, strict=True):  # each factor is a whole slab of the grid
        d = pieces.index(piece)
        for root in classes(axes, piece):
            at = lost(axes, piece, root, size)
            slab = np.isin(np.indices(sizes)[d], at).ravel()
            assert set(np.flatnonzero(slab)) <= set(lost(axes, axis, root, LENGTH))


def test_splitting_a_column_that_varies_along_one_dimension_needs_no_refinement():
    labels = Labels()
    axes = Axes(labels)
    heads = axes.fresh("heads", 3)
    merged = axes.merge([heads, FIXED], (3, 4))
    assert merged[0].labels.tolist() == [1] * 4 + [2] * 4 + [3] * 4
    first, second = axes.split(merged, (3, 4), "key")
    assert not labels.refined
    assert first[0].labels.tolist() == [1, 2, 3]
    assert second == FIXED


def test_splitting_one_channel_pins_it():
    axes = Axes(Labels())
    axes.reason = "the op"
    one = axes.fresh("a", 2)
    spread = (Column(np.repeat(one[0].labels[:1], 6)),)
    assert axes.split(spread, (2, 3), "key") == [FIXED, FIXED]
    assert axes.labels.is_pinned(one[0].labels).tolist() == [True, False]
    assert axes.labels.reason(int(one[0].labels[0])) == "the op"


def test_dimensions_of_size_one_have_no_channels():
    assert Axes(Labels()).fresh("a", 1) == FIXED


@settings(deadline=None, derandomize=True, max_examples=40)
@given(recipes(), st.lists(st.integers(1, LENGTH - 1), unique=True, max_size=3))
def test_joining_undoes_taking_apart(recipe, cuts):
    bounds = [0, *sorted(cuts), LENGTH]

    def program(axes):
        axis, _ = cook(axes, recipe, "a")
        parts = [axes.take(axis, slice(a, b)) for a, b in pairwise(bounds)]
        return axis, axes.join(parts, [b - a for a, b in pairwise(bounds)])

    axes, (axis, joined) = settle(program)
    for root in classes(axes, axis, joined):
        assert lost(axes, axis, root, LENGTH) == lost(axes, joined, root, LENGTH)


def test_what_is_joined_to_channels_stays():
    axes = Axes(Labels())
    joined = axes.join([FIXED, axes.fresh("a", 3), FIXED], [2, 3, 1])
    assert joined[0].labels.tolist() == [0, 0, 1, 2, 3, 0]


def test_a_joined_axis_is_zero_where_removed_only_if_all_its_parts_are():
    axes = Axes(Labels())
    zero, other = axes.fresh("a", 2, is_zero=True), axes.fresh("b", 2)
    assert axes.join([zero, zero], [2, 2])[0].is_zero
    assert axes.join([zero, FIXED], [2, 2])[0].is_zero
    assert not axes.join([zero, other], [2, 2])[0].is_zero


def test_tidy_drops_columns_that_are_pinned_or_there_twice():
    axes = Axes(Labels())
    (a,), (b,), (c,) = axes.fresh("a", 3), axes.fresh("b", 3, is_zero=True), axes.fresh("c", 3)
    axes.labels.unite(a.labels, b.labels, "")
    axes.labels.pin(c.labels, "output")
    tidied = axes.tidy((a, b, c))
    assert [x.labels.tolist() for x in tidied] == [a.labels.tolist()]
    assert tidied[0].is_zero
