import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.frameworks.torch import ops
from lilliput.ops.masks import prune_count, prune_smallest, share_count

SCORES = st.lists(st.integers(0, 5), min_size=1, max_size=60)


def reference_mask(scores, count):
    """Sort by (score, later position first) and drop the first ``count``."""
    order = sorted(range(len(scores)), key=lambda i: (scores[i], -i))
    mask = np.ones(len(scores))
    mask[order[:count]] = 0
    return mask


@settings(max_examples=500, deadline=None, derandomize=True)
@given(scores=SCORES, data=st.data())
def test_the_mask_equals_a_stable_sort_for_any_ties(scores, data):
    count = data.draw(st.integers(0, len(scores)))
    mask = prune_smallest(torch.tensor(scores, dtype=torch.float32), count)
    np.testing.assert_array_equal(mask.numpy(), reference_mask(scores, count))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(size=st.integers(1, 10**9), sparsity=st.floats(0, 1, exclude_max=True))
def test_the_count_is_the_nearest_whole_number(size, sparsity):
    assert abs(prune_count(size, sparsity) - size * sparsity) <= 0.5 + 1e-6
    assert 0 <= prune_count(size, sparsity) <= size


def test_masks_keep_shape_dtype_and_device():
    score = torch.rand(3, 4, 5, dtype=torch.float64)
    mask = prune_smallest(score, 30)
    assert (mask.shape, mask.dtype, mask.device) == (score.shape, score.dtype, score.device)
    assert int((mask == 0).sum()) == 30


@pytest.mark.parametrize(
    "kind", ["normal", "constant", "grid", "sorted", "two-sided", "heavy-ties"]
)
@pytest.mark.parametrize("sparsity", [1e-6, 0.2, 0.5, 0.999999])
def test_large_tensors_get_the_exact_kth_value(kind, sparsity):
    generator = torch.Generator().manual_seed(0)
    size = (1 << 20) + 7
    values = {
        "normal": torch.randn(size, generator=generator).abs(),
        "constant": torch.full((size,), 0.25),
        "grid": (torch.randn(size, generator=generator) * 8).round().abs() / 8,
        "sorted": torch.arange(size, dtype=torch.float32),
        # a pattern with the period of the sampling stride: the sample sees only zeros
        "two-sided": (torch.arange(size) % 16 != 0).float(),
        "heavy-ties": torch.where(torch.rand(size, generator=generator) < 0.9, 0.0, 1.0),
    }[kind]
    k = max(1, round(size * sparsity))
    assert ops.kth_smallest(values, k) == np.partition(values.numpy(), k - 1)[k - 1]
    assert int((prune_smallest(values, k) == 0).sum()) == k


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    share=st.floats(0, 1),
    cap=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_shared_counts_add_up_respect_caps_and_rank_globally(sizes, share, cap, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = [torch.rand(size, generator=generator) for size in sizes]
    caps = [int(size * cap) for size in sizes]
    count = int(sum(sizes) * share)
    shares = share_count(scores, count, caps)
    assert sum(shares) == min(count, sum(caps))
    assert all(0 <= given_ <= limit for given_, limit in zip(shares, caps, strict=True))
    uncapped = share_count(scores, count, sizes)
    border = np.sort(np.concatenate([s.numpy() for s in scores]))[:count][-1:] if count else []
    for value in border:
        assert uncapped == [int((s <= value).sum()) for s in scores]
