import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

from lilliput.errors import ConfigError, StateError
from lilliput.ops.qparams import Grid
from lilliput.quantization.observers import (
    MSE,
    OBSERVERS,
    Entropy,
    MinMax,
    MovingAverage,
    Observer,
    Percentile,
    make_observer,
)

UINT8 = Grid(8, False, False)
ALL = [MinMax, MovingAverage, Percentile, MSE, Entropy]


def batches(count=6, size=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) * (1 + 0.2 * i) for i in range(count)]


def seen(cls, data):
    observer = cls()
    for batch in data:
        observer.observe(batch)
    return observer


def merged(*observers):
    """Let observers merge as if each was in a process of its own."""
    barrier, slots = Barrier(len(observers)), {}
    joins = {"min": np.min, "max": np.max, "sum": np.sum}

    def work(index):
        def reduce(array, how):
            slots[index] = np.asarray(array)
            barrier.wait(timeout=10)
            joined = joins[how]([slots[i] for i in sorted(slots)], axis=0)
            barrier.wait(timeout=10)
            return joined

        observers[index].merge(reduce)

    with ThreadPoolExecutor(len(observers)) as pool:
        list(pool.map(work, range(len(observers))))
    return observers


def test_min_max_and_moving_average_are_those_of_numpy():
    data = batches()
    ends = np.array([[float(x.min()), float(x.max())] for x in data])
    assert seen(MinMax, data).range(UINT8) == (ends[:, 0].min(), ends[:, 1].max())
    low, high = ends[0]
    for new_low, new_high in ends[1:]:
        low, high = 0.9 * low + 0.1 * new_low, 0.9 * high + 0.1 * new_high
    np.testing.assert_allclose(seen(MovingAverage, data).range(UINT8), (low, high))


@pytest.mark.parametrize("cls", ALL)
def test_every_range_is_within_what_was_seen(cls):
    data = batches()
    low, high = seen(cls, data).range(UINT8)
    widest = seen(MinMax, data).range(UINT8)
    # A bin of the histogram, which has grown by a quarter.
    slack = 1.25 * (widest[1] - widest[0]) / 2048
    assert widest[0] * 1.25 - slack <= low < 0 < high <= widest[1] * 1.25 + slack


@pytest.mark.parametrize("cls", [MinMax, Percentile, MSE, Entropy])
def test_two_halves_together_are_the_whole(cls):
    data = batches(8)
    whole = seen(cls, data).range(UINT8)
    halves = merged(seen(cls, data[:4]), seen(cls, data[4:]))
    ranges = [half.range(UINT8) for half in halves]
    assert ranges[0] == ranges[1], "all processes go on with the same range"
    if cls is MinMax:
        assert ranges[0] == whole
    else:
        np.testing.assert_allclose(ranges[0], whole, rtol=0.08)


def test_merged_histograms_are_binned_alike():
    """One process saw twice the range of the other; no value may move by more than a bin."""
    first, second = Percentile(), Percentile()
    first.observe(torch.linspace(0, 10, 10001))
    second.observe(torch.linspace(0, 5, 5001))
    merged(first, second)
    for observer in (first, second):
        histogram = observer.histogram
        assert (histogram.low, histogram.high) == (0, 10)
        expected = np.where(histogram.centers < 5, 2, 1) * 10001 / 2048
        np.testing.assert_allclose(histogram.counts[:-1], expected[:-1], atol=3.1)
        assert histogram.counts.sum() == 15002


def test_moving_averages_count_by_their_batches():
    data = batches(4)
    one, nothing = merged(seen(MovingAverage, data), MovingAverage())
    assert one.range(UINT8) == nothing.range(UINT8)
    np.testing.assert_allclose(one.range(UINT8), seen(MovingAverage, data).range(UINT8))


@pytest.mark.parametrize("cls", ALL)
def test_what_was_seen_survives_a_file_and_can_be_continued(cls):
    data = batches()
    begun = seen(cls, data[:3])
    again = cls()
    again.load(json.loads(json.dumps(begun.state())))
    for batch in data[3:]:
        again.observe(batch)
    assert again.range(UINT8) == seen(cls, data).range(UINT8), "to the bit"


def test_what_another_observer_saw_is_refused():
    with pytest.raises(StateError, match="MovingAverage was saved with"):
        MovingAverage().load(MinMax().state())


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_noticed_first_or_later(cls, bad):
    poison = torch.tensor([0.0, bad, 1.0])
    for data in ([poison], [*batches(2), poison]):
        observer = seen(cls, data[:-1])
        assert observer.is_finite()
        observer.observe(data[-1])
        assert not observer.is_finite()


@pytest.mark.parametrize("cls", ALL)
def test_nothing_seen_is_known_from_nothing_but_zeros(cls):
    assert cls().is_empty() and cls().is_finite()
    zeros = seen(cls, [torch.zeros(3)])
    assert not zeros.is_empty() and zeros.range(UINT8) == (0, 0)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_observed(cls, dtype):
    low, high = seen(cls, [x.to(dtype) for x in batches(2)]).range(UINT8)
    assert -6 < low < -1 and 1 < high < 6


def test_observers_are_found_by_name_class_or_not_at_all():
    class Narrow(MinMax):
        def range(self, grid):
            low, high = super().range(grid)
            return 0.9 * low, 0.9 * high

    assert [type(make_observer(name.upper())) for name in OBSERVERS] == list(OBSERVERS.values())
    assert seen(Narrow, [torch.tensor([-1.0, 1.0])]).range(UINT8) == (-0.9, 0.9)
    assert isinstance(make_observer(Narrow), Narrow)
    with pytest.raises(ConfigError, match="received 'minmx'. Did you mean 'minmax'"):
        make_observer("minmx")


@pytest.mark.parametrize("percentile", [50, 0, -1, 100.1, float("nan")])
def test_a_percentile_must_keep_more_than_half(percentile):
    with pytest.raises(ConfigError, match="percentile"):
        Percentile(percentile)


def test_an_unfinished_observer_says_what_is_missing():
    for method in ("observe", "range"):
        with pytest.raises(NotImplementedError, match=method):
            getattr(Observer(), method)(None)
    with pytest.raises(NotImplementedError, match="is_finite"):
        Observer().is_finite()
