import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.errors import AlgorithmError
from lilliput.ops.patterns import block_scores, expand_blocks, keep_n_of_m

EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)


def scores(shape, seed):
    """Small integers, so that ties are common and sums are exact."""
    return np.random.default_rng(seed).integers(0, 4, shape).astype(np.float32)


def reference_n_of_m(score, n, m, axis):
    mask = np.zeros_like(score)
    for line, out in zip(
        np.moveaxis(score, axis, -1).reshape(-1, score.shape[axis]),
        lines := np.moveaxis(mask, axis, -1).reshape(-1, score.shape[axis]).copy(),
        strict=True,
    ):
        for start in range(0, len(line), m):
            order = sorted(range(start, start + m), key=lambda i: (-line[i], i))
            out[order[:n]] = 1
    moved = np.moveaxis(mask, axis, -1).shape
    return np.moveaxis(lines.reshape(moved), -1, axis)


@EXAMPLES
@given(data=st.data(), m=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_n_of_m_equals_the_plain_loop_on_any_axis_and_with_ties(data, m, seed):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    shape[axis] *= m
    n = data.draw(st.integers(0, m))
    score = scores(shape, seed)
    mask = keep_n_of_m(torch.tensor(score), n, m, axis)
    np.testing.assert_array_equal(mask.numpy(), reference_n_of_m(score, n, m, axis))


@EXAMPLES
@given(
    blocks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    block=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    kernel=st.lists(st.integers(1, 3), max_size=3),
    seed=st.integers(0, 10**6),
)
def test_blocks_sum_and_expand_as_the_plain_loop(blocks, block, kernel, seed):
    shape = (blocks[0] * block[0], blocks[1] * block[1], *kernel)
    score = scores(shape, seed)
    summed, mask = np.zeros(blocks, np.float32), np.zeros(shape, np.float32)
    keep = scores(blocks, seed + 1) > 1
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            rows = slice(i * block[0], (i + 1) * block[0])
            columns = slice(j * block[1], (j + 1) * block[1])
            summed[i, j] = score[rows, columns].sum()
            mask[rows, columns] = keep[i, j]
    np.testing.assert_array_equal(block_scores(torch.tensor(score), block).numpy(), summed)
    expanded = expand_blocks(torch.tensor(keep.astype(np.float32)), block, shape)
    np.testing.assert_array_equal(expanded.numpy(), mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masks_keep_shape_and_dtype(dtype):
    score = torch.randn(8, 4, 3, 3).abs().to(dtype)
    mask = keep_n_of_m(score, 2, 4, axis=1)
    assert (mask.shape, mask.dtype) == (score.shape, dtype)
    assert (mask.float().sum(1) == 2).all()
    blocks = block_scores(score, (4, 2))
    assert (blocks.shape, blocks.dtype) == ((2, 2), dtype)
    assert expand_blocks(blocks, (4, 2), score.shape).dtype == dtype


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: keep_n_of_m(s, 2, 4, axis=0), r"axis 0 of the shape \(6, 8\) has 6 entries"),
        (lambda s: keep_n_of_m(s, 5, 4, axis=1), "n=5 and m=4, expected m of 1 or more"),
        (lambda s: keep_n_of_m(s, 0, 0, axis=1), "n=0 and m=0"),
        (lambda s: keep_n_of_m(s, 1, 2, axis=2), "axis 2 does not exist"),
        (lambda s: block_scores(s, (4, 4)), "groups of 4 do not divide"),
        (lambda s: block_scores(s, (0, 4)), r"received block=\(0, 4\)"),
        (lambda s: block_scores(s[0], (1, 1)), "two axes or more"),
        (lambda s: expand_blocks(s, (2, 2), (6, 8)), r"shape \(6, 8\), expected \(3, 4\)"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(AlgorithmError, match=message):
        call(torch.ones(6, 8))
