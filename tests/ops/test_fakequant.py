import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lilliput.backends.torch import ops
from lilliput.ops.fakequant import integer_range, quantize_symmetric, quantize_unit

FLOATS = st.lists(
    st.floats(-1e4, 1e4, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20),
    min_size=1,
    max_size=40,
)


def plain_reference(x, bits):
    """The formula in float64 NumPy."""
    top = 2 ** (bits - 1) - 1
    scale = np.abs(x).max() / top if np.abs(x).max() > 0 else 1.0
    return np.clip(np.round(x / scale), -top, top) * scale, scale


@settings(max_examples=400, deadline=None, derandomize=True)
@given(values=FLOATS, bits=st.integers(2, 16))
def test_it_follows_the_formula_and_its_algebra(values, bits):
    x = torch.tensor(values, dtype=torch.float64)
    q = quantize_symmetric(x, bits)
    expected, scale = plain_reference(np.array(values), bits)
    # A value exactly between two levels may go either way: allow one level where it is that close.
    distance = np.abs(np.abs(x.numpy() / scale % 1) - 0.5)
    clear = distance > 1e-6
    np.testing.assert_allclose(q.numpy()[clear], expected[clear], rtol=1e-12, atol=1e-300)
    assert (np.abs(q.numpy() - x.numpy()) <= scale * (0.5 + 1e-6)).all()
    assert len(np.unique(np.round(q.numpy() / scale))) <= 2**bits - 1
    assert (q[x == 0] == 0).all()
    again = quantize_symmetric(q, bits)
    np.testing.assert_allclose(again.numpy(), q.numpy(), rtol=1e-12)
    order = np.argsort(x.numpy(), kind="stable")
    assert (np.diff(q.numpy()[order]) >= -1e-12 * scale).all()


@pytest.mark.parametrize("shape", [(64, 128), (16, 3, 3, 3)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_fast_form_is_bit_equal_to_torchs_kernel(shape, bits):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(bits))
    low, high = integer_range(bits)
    scale = x.abs().max() / high
    expected = torch.fake_quantize_per_tensor_affine(x, float(scale), 0, low, high)
    assert torch.equal(ops.fake_quantize(x, scale, low, high), expected)


def test_one_bit_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        integer_range(1)


def test_an_all_zero_tensor_stays_zero():
    assert torch.equal(quantize_symmetric(torch.zeros(5), 8), torch.zeros(5))


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_unit_quantization_hits_the_grid_and_passes_the_gradient(bits):
    x = torch.linspace(0, 1, 101, dtype=torch.float64, requires_grad=True)
    q = quantize_unit(x, bits)
    levels = 2**bits - 1
    np.testing.assert_allclose(q.detach().numpy(), np.round(x.detach().numpy() * levels) / levels)
    q.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.ones(101))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("magnitude", [1e-3, 1e-7, 1e-30, 1e-39])
def test_tiny_weights_in_any_precision_stay_finite_and_zero_stays_zero(dtype, magnitude):
    x = torch.tensor([0.0, 1.0, -0.5]).mul(magnitude).to(dtype)
    q = quantize_symmetric(x, 8)
    assert q.dtype == dtype and bool(torch.isfinite(q).all()) and q[0] == 0
    if x.abs().max() > 1e-37:  # below, numbers lose their last bits and become zero
        assert bool((q - x).abs().max() <= x.abs().max() / 64)
