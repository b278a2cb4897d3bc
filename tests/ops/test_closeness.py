"""Errors are relative to the largest entry, but not to numbers that mark what does not count."""

import numpy as np
import pytest

from lilliput.ops.closeness import relative_error

RNG = np.random.default_rng(0)


def test_it_is_relative_to_the_largest_entry():
    expected = RNG.normal(size=(50, 40)) ** 5
    received = expected + 1e-3 * RNG.normal(size=expected.shape)
    wanted = np.abs(received - expected).max() / np.abs(expected).max()
    assert relative_error(expected, received) == pytest.approx(wanted)
    assert relative_error(expected, expected) == 0.0


@pytest.mark.parametrize("filler", [-1e9, 1e30, np.finfo("float64").min])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
def test_fillers_hide_no_error(filler, share):
    scores = RNG.normal(size=(64, 64)) * 5
    is_filled = RNG.random(scores.shape) < share
    wrong = scores + 0.01
    largest = np.abs(scores[~is_filled]).max()
    for fill in (lambda x: np.where(is_filled, filler, x), lambda x: x + is_filled * filler):
        found = relative_error(fill(scores), fill(wrong))
        assert found == pytest.approx(0.01 / largest, rel=1e-6)


def test_in_single_precision_the_least_number_hides_no_error():
    scores = RNG.normal(size=100).astype("float32")
    expected = np.append(scores, np.finfo("float32").min).astype("float32")
    received = np.append(scores + 1, expected[-1])
    assert relative_error(expected, received) == pytest.approx(1 / np.abs(scores).max(), rel=1e-4)


def test_an_error_of_a_filler_counts():
    expected = np.array([-1e9, 1.0])
    assert relative_error(expected, np.array([-2e9, 1.0])) == 1.0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_rounding_left_of_huge_numbers_is_no_error(dtype):
    huge = (RNG.normal(size=1000) * 1e9).astype(dtype)
    left = huge * np.finfo(dtype).eps * RNG.normal(size=1000).astype(dtype)
    others = huge * np.finfo(dtype).eps * RNG.normal(size=1000).astype(dtype)
    found = relative_error(np.append(huge, left), np.append(huge, others))
    assert found < 10 * np.finfo(dtype).eps


def test_small_differences_of_huge_numbers_may_have_their_rounding_errors():
    huge = RNG.normal(size=(4, 8)) * 1e5
    small = RNG.normal(size=(4, 8)) * 1e-3  # such as f(x + 1e-8) - f(x) next to f(x)
    error = 1e5 * np.finfo("float64").eps
    assert relative_error(np.append(huge, small), np.append(huge, small + error)) < 1e-14
    wrong = relative_error(np.append(huge, small), np.append(huge, small + 1e-7))
    assert wrong == pytest.approx(1e-7 / np.abs(small).max(), rel=1e-3)


def test_fillers_have_no_rounding_errors_to_excuse():
    scores = RNG.normal(size=30)
    expected = np.append(np.full(20, -1e9), scores)
    received = np.append(np.full(20, -1e9), scores + 1e-6)
    assert relative_error(expected, received) == pytest.approx(1e-6 / np.abs(scores).max())
    huge = RNG.normal(size=20) * 1e38
    received = np.append(huge, scores + 1)
    found = relative_error(np.append(huge, scores), received)
    assert found == pytest.approx(1 / np.abs(scores).max())


def test_numbers_next_to_small_ones_are_no_fillers():
    assert relative_error(np.array([1.0, 1e-9]), np.array([1.0, 2e-9])) == pytest.approx(1e-9)
    assert relative_error(np.array([0.0, 0.0]), np.array([0.0, 0.5])) == 0.5


def test_other_infinities_and_nothing_at_all():
    assert relative_error(np.array([1.0, np.inf]), np.array([1.0, 1.0])) == float("inf")
    assert relative_error(np.array([np.inf, np.nan]), np.array([np.inf, np.nan])) == 0.0
    assert relative_error(np.zeros(0), np.zeros(0)) == 0.0
