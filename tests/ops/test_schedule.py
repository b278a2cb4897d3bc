import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.ops.schedule import cubic_sparsity

SCHEDULES = st.tuples(
    st.floats(0, 0.99),
    st.floats(0, 0.99),
    st.integers(0, 30),
    st.integers(0, 60),
    st.integers(1, 12),
).map(lambda t: (min(t[:2]), max(t[:2]), *t[2:]))


@settings(max_examples=500, deadline=None, derandomize=True)
@given(schedule=SCHEDULES)
def test_it_is_clamped_monotone_on_the_grid_and_ends_exactly(schedule):
    initial, final, start, end, frequency = schedule
    values = [cubic_sparsity(epoch, *schedule) for epoch in range(100)]
    assert all(value == 0 for value in values[:start])
    reached = values[start:]
    assert all(initial - 1e-12 <= value <= final for value in reached)
    assert all(a <= b + 1e-12 for a, b in zip(reached, reached[1:], strict=False))
    for step, value in enumerate(reached):
        assert value == reached[step - step % frequency]
    last_grid_point = start + max(0, (end - start) // frequency) * frequency
    assert values[last_grid_point] == final
    assert set(values[last_grid_point:]) == {final}


def test_it_equals_the_formula_of_the_paper_on_the_grid():
    initial, final, start, updates, frequency = 0.05, 0.60, 4, 8, 2
    for k in range(updates + 1):
        t = start + k * frequency
        expected = final + (initial - final) * (1 - (t - start) / (updates * frequency)) ** 3
        value = cubic_sparsity(t, initial, final, start, start + updates * frequency, frequency)
        assert math.isclose(value, expected, rel_tol=1e-12)


def test_the_2019_example_file_reaches_its_target_and_never_passes_it():
    values = np.array([cubic_sparsity(epoch, 0.05, 0.60, 0, 16, 2) for epoch in range(20)])
    assert values[0] == 0.05 and values[16] == 0.60 and values.max() == 0.60
    assert (values[0:16:2] == values[1:16:2]).all()


def test_an_end_not_after_the_start_means_at_once():
    assert [cubic_sparsity(e, 0.0, 0.7, 3, 3, 1) for e in (2, 3, 4)] == [0.0, 0.7, 0.7]
    assert cubic_sparsity(5, 0.0, 0.7, 5, 2, 1) == 0.7
