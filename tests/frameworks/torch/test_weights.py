"""Masks are written into weights in place, whatever numbers these hold."""

import pytest
import torch

from lilliput.frameworks.torch.backend import TorchBackend
from lilliput.frameworks.torch.weights import in_blocks, is_zero_at, zero_


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (7,), (5, 3), (400, 500), (2, 200_000)])
def test_what_a_mask_prunes_becomes_zero_and_the_rest_stays(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(shape, generator=generator) < 0.5).float()
    tensor = torch.randn(shape, generator=generator).to(dtype)
    expected = torch.where(mask == 0, 0, tensor)
    zero_(tensor, mask)
    assert torch.equal(tensor, expected)
    assert not torch.signbit(tensor[mask == 0]).any()
    assert is_zero_at(tensor, mask)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_infinity_and_nan_are_pruned_too_and_stay_where_they_are_not(bad):
    tensor, mask = torch.randn(300, 1000), torch.ones(300, 1000)
    tensor[1, 2] = tensor[299, 999] = bad
    mask[1, 2] = 0
    expected = tensor.clone()
    expected[1, 2] = 0
    assert not is_zero_at(tensor, mask)
    zero_(tensor, mask)
    assert torch.equal(tensor.nan_to_num(123), expected.nan_to_num(123))


def test_blocks_are_views_of_all_rows():
    tensor, other = torch.zeros(1001, 300), torch.ones(1001, 300)
    for part, one in in_blocks(tensor, other):
        assert part.shape == one.shape
        part.add_(one)
    assert torch.equal(tensor, other)


def test_flags_of_a_mask_are_a_copy():
    flags = torch.tensor([True, False])
    for mask in (flags, flags.float()):
        found = TorchBackend().to_flags(mask)
        assert found.dtype == torch.bool
        assert found.tolist() == [True, False]
        assert found.data_ptr() != mask.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [[0.0, 1.0, 0.5, -2.0], [False, True, True, True]])
def test_zeros_are_where_a_mask_is_zero_whatever_its_other_numbers_are(dtype, mask):
    weight, mask = torch.tensor([1.0, 2.0, -3.0, 4.0], dtype=dtype), torch.tensor(mask)
    assert not is_zero_at(weight, mask)
    zero_(weight, mask)
    assert weight.tolist() == [0.0, 2.0, -3.0, 4.0]
    assert is_zero_at(weight, mask)


@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_are_set_to_zero_too(odd):
    weight, mask = torch.tensor([odd, 2.0]), torch.tensor([0.0, 1.0])
    assert not is_zero_at(weight, mask)
    zero_(weight, mask)
    assert weight.tolist() == [0.0, 2.0]
