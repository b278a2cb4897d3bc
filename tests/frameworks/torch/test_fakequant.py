"""The fast kernels against torch's own, and against the plain formulas with ``detach``."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from lilliput.config.layer import QuantType
from lilliput.frameworks.torch.fakequant import (
    fake_quantize,
    learned_fake_quantize,
    offset_to_zero_point,
    round_to_grid,
)
from lilliput.frameworks.torch.grad import map_gradient, straight_through, with_gradient
from lilliput.ops.grad import QuantGrad

quick = settings(max_examples=60, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**20)
MAGNITUDES = st.sampled_from([1e-4, 0.1, 1.0, 37.0, 1e4])


def numbers(seed, shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def ends(bits, is_signed):
    low = -(2 ** (bits - 1)) if is_signed else 0
    return low, low + 2**bits - 1


def clear_of_ties(x, scale, low, high, zero):
    """Where the value is not so close to a range's end that one rounding decides the gradient."""
    steps = x.double() / scale.double() + zero
    return ((steps - (low - 0.5)).abs() > 1e-3) & ((steps - (high + 0.5)).abs() > 1e-3)


# -- equal to torch --------------------------------------------------------------------------------


@quick
@given(SEEDS, st.integers(1, 16), st.booleans(), MAGNITUDES, st.floats(0.2, 1.5), st.data())
def test_one_scale_for_all_is_bit_equal_to_torch(seed, bits, is_signed, size, cover, data):
    low, high = ends(bits, is_signed)
    zero = data.draw(st.integers(low, high))
    x = (numbers(seed, (6, 50)) * size).requires_grad_()
    scale = torch.tensor(cover * 6 * size / (high - low))
    mine = fake_quantize(x, scale, low, high, torch.tensor(float(zero)))
    twin = x.detach().clone().requires_grad_()
    theirs = torch.fake_quantize_per_tensor_affine(
        twin, scale, torch.tensor(zero, dtype=torch.int32), low, high
    )
    assert torch.equal(mine, theirs)
    upstream = numbers(seed + 1, x.shape)
    mine.backward(upstream)
    theirs.backward(upstream)
    clear = clear_of_ties(x.detach(), scale, low, high, zero)
    assert torch.equal(x.grad[clear], twin.grad[clear])


@quick
@given(SEEDS, st.integers(2, 8), st.booleans(), st.sampled_from([0, 1, 2]), MAGNITUDES)
def test_a_scale_per_channel_is_bit_equal_to_torch(seed, bits, is_signed, axis, size):
    low, high = ends(bits, is_signed)
    x = (numbers(seed, (3, 4, 5)) * size).requires_grad_()
    count = x.shape[axis]
    scale = (numbers(seed + 1, (count,)).abs() + 0.2) * size * 3 / (high - low)
    zero = torch.randint(low, high + 1, (count,), generator=torch.Generator().manual_seed(seed))
    shape = [-1 if i == axis else 1 for i in range(3)]
    wide_scale, wide_zero = scale.view(shape), zero.float().view(shape)
    mine = fake_quantize(x, wide_scale, low, high, wide_zero)
    twin = x.detach().clone().requires_grad_()
    theirs = torch.fake_quantize_per_channel_affine(
        twin, scale, zero.to(torch.int32), axis, low, high
    )
    assert torch.equal(mine, theirs)
    upstream = numbers(seed + 2, x.shape)
    mine.backward(upstream)
    theirs.backward(upstream)
    clear = clear_of_ties(x.detach(), wide_scale, low, high, wide_zero)
    assert torch.equal(x.grad[clear], twin.grad[clear])


@quick
@given(SEEDS, st.integers(2, 16))
def test_a_grid_that_covers_passes_every_gradient_and_rounds_the_same(seed, bits):
    top = 2 ** (bits - 1) - 1
    x = numbers(seed, (7, 9)).requires_grad_()
    scale = x.detach().abs().max() / top
    rounded = round_to_grid(x, scale, -top, top)
    assert torch.equal(rounded, fake_quantize(x, scale, -top, top))
    upstream = numbers(seed + 1, x.shape)
    rounded.backward(upstream)
    assert torch.equal(x.grad, upstream)


# -- learned scales --------------------------------------------------------------------------------


def plain_lsq(x, scale, low, high, zero, factor):
    """Round and clip with ``detach``, the gradient of the scale made smaller by ``factor``."""
    step = scale * factor + (scale - scale * factor).detach()
    ratio = x / step
    rounded = ratio + (ratio.round() - ratio).detach()
    return rounded.clamp(low - zero, high - zero) * step


@quick
@given(SEEDS, st.integers(2, 8), st.booleans(), st.floats(0.1, 1.2), st.data())
def test_lsq_equals_the_formula_with_detach(seed, bits, is_signed, cover, data):
    low, high = ends(bits, is_signed)
    zero = data.draw(st.integers(low, high))
    x, scale = numbers(seed, (8, 20), torch.float64), torch.tensor(cover * 6 / (high - low))
    results = []
    for function in (learned_fake_quantize, plain_lsq):
        own = x.clone().requires_grad_()
        step = scale.double().requires_grad_()
        factor, held = 0.37, torch.tensor(float(zero), dtype=torch.float64)
        given_ = (factor, held) if function is learned_fake_quantize else (held, factor)
        output = function(own, step, low, high, *given_)
        output.backward(numbers(seed + 1, x.shape, torch.float64))
        results.append((output.detach(), own.grad, step.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@quick
@given(SEEDS, st.integers(2, 8), st.sampled_from([0, 1]))
def test_lsq_with_a_scale_per_channel_equals_the_formula(seed, bits, axis):
    low, high = ends(bits, True)
    x = numbers(seed, (4, 6, 3), torch.float64)
    shape = [x.shape[i] if i == axis else 1 for i in range(3)]
    start = (numbers(seed + 1, shape, torch.float64).abs() + 0.3) * 4 / (high - low)
    results = []
    for is_mine in (True, False):
        own, step = x.clone().requires_grad_(), start.clone().requires_grad_()
        if is_mine:
            output = learned_fake_quantize(own, step, low, high, 0.1)
        else:
            output = plain_lsq(own, step, low, high, 0, 0.1)
        output.backward(numbers(seed + 2, x.shape, torch.float64))
        results.append((output.detach(), own.grad, step.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_lsq_equals_the_kernels_of_torch(bits):
    low, high = ends(bits, True)
    x, upstream = numbers(0, (16, 40)), numbers(1, (16, 40))
    for per_channel in (False, True):
        start = torch.full((16,) if per_channel else (1,), 4 / (high - low))
        mine, theirs = (start.clone().requires_grad_() for _ in range(2))
        x1, x2 = (x.clone().requires_grad_() for _ in range(2))
        zero = torch.zeros_like(start)
        y1 = learned_fake_quantize(x1, mine.view(-1, 1), low, high, 0.5)
        if per_channel:
            y2 = torch._fake_quantize_learnable_per_channel_affine(
                x2, theirs, zero, 0, low, high, 0.5
            )
        else:
            y2 = torch._fake_quantize_learnable_per_tensor_affine(x2, theirs, zero, low, high, 0.5)
        assert torch.equal(y1, y2)
        y1.backward(upstream)
        y2.backward(upstream)
        assert torch.equal(x1.grad, x2.grad)
        # Sums of differences in single precision, added up in another order.
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


@quick
@given(SEEDS, st.integers(2, 8), st.floats(0.1, 1.2), st.data())
def test_the_offset_of_lsq_plus_equals_the_formula(seed, bits, cover, data):
    low, high = ends(bits, False)
    zero = data.draw(st.integers(low, high))
    x = numbers(seed, (8, 20), torch.float64)
    start = torch.tensor(cover * 6 / (high - low), dtype=torch.float64)
    results = []
    for is_mine in (True, False):
        own, step = x.clone().requires_grad_(), start.clone().requires_grad_()
        offset = ((low - zero) * start).clone().requires_grad_()  # on the grid, where both agree
        if is_mine:
            output = learned_fake_quantize(own, step, low, high, 1.0, offset=offset)
        else:
            ratio = (own - offset) / step
            rounded = ratio + (ratio.round() - ratio).detach()
            output = rounded.clamp(0, high - low) * step + offset
        output.backward(numbers(seed + 1, x.shape, torch.float64))
        results.append((output.detach(), own.grad, step.grad, offset.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@quick
@given(st.floats(1e-3, 10), st.floats(-50, 50), st.integers(2, 8))
def test_a_zero_point_made_of_an_offset_is_a_whole_number_of_the_grid(scale, offset, bits):
    low, high = ends(bits, False)
    zero = float(offset_to_zero_point(torch.tensor(scale), torch.tensor(offset), low, high))
    assert zero == round(zero) and low <= zero <= high
    assert zero == pytest.approx(np.clip(low - offset / scale, low, high), abs=0.51)


def test_lsq_follows_a_result_that_was_changed_in_place():
    x = numbers(0, (4, 5))
    grads = []
    for is_changed in (False, True):
        scale = torch.tensor(0.3, requires_grad=True)
        output = learned_fake_quantize(x.clone().requires_grad_(), scale, -4, 3, 1.0)
        output = output.add_(2) if is_changed else output + 2
        output.backward(torch.ones_like(output))
        grads.append(scale.grad)
    torch.testing.assert_close(grads[0], grads[1])


# -- what surrounds them ---------------------------------------------------------------------------


class Doubled(QuantGrad):
    @staticmethod
    def quant_backward(tensor, grad_output, quant_type):
        return 2 * grad_output


KERNELS = {
    "fake_quantize": lambda x: fake_quantize(x, torch.tensor(0.5), -3, 3),
    "with zero point": lambda x: fake_quantize(x, torch.tensor(0.5), 0, 7, torch.tensor(3.0)),
    "per channel": lambda x: fake_quantize(x, torch.tensor([[0.5], [0.25]]), -3, 3),
    "round_to_grid": lambda x: round_to_grid(x, torch.tensor(0.5), -9, 9),
    "straight_through": lambda x: straight_through(x, x.detach().round()),
    "with_gradient": lambda x: with_gradient(x, x.detach().round(), Doubled, QuantType.OUTPUT),
    "map_gradient": lambda x: map_gradient(x, lambda gradient: 3 * gradient),
    "learned": lambda x: learned_fake_quantize(x, torch.tensor(0.5), -3, 3, 1.0),
}
TANGENT = torch.arange(1.0, 9.0).view(2, 4)
X = torch.tensor([[-2.3, -0.2, 0.1, 0.9], [1.2, 1.7, 0.4, -0.6]])


def gradient_of(function, x=X):
    x = x.clone().requires_grad_()
    (function(x) * TANGENT).sum().backward()
    return x.grad


@pytest.mark.parametrize("name", KERNELS)
def test_the_result_may_be_changed_in_place(name):
    kernel = KERNELS[name]
    for change in (lambda y: y.add_(1), lambda y: y.relu_()):
        plain = gradient_of(lambda x, c=change: c(kernel(x * 1.0).clone()))
        torch.testing.assert_close(gradient_of(lambda x, c=change: c(kernel(x * 1.0))), plain)
    with torch.no_grad():
        kernel(X.clone()).add_(1)


@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_kernel_is_the_same(name):
    kernel = KERNELS[name]
    torch._dynamo.reset()
    compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), kernel(X))
    torch.testing.assert_close(gradient_of(compiled), gradient_of(kernel))


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ("learned",)])
def test_gradients_of_single_samples_are_those_of_a_loop(name):
    kernel = KERNELS[name]
    if name == "per channel":
        rows = X.unsqueeze(0).repeat(3, 1, 1) * torch.tensor([1.0, 0.3, 2.0]).view(3, 1, 1)
    else:
        rows = X.repeat(2, 1)
    one = torch.func.grad(lambda x: (kernel(x) * 2).sum())
    many = torch.func.vmap(one)(rows)
    torch.testing.assert_close(many, torch.stack([one(row) for row in rows]))


@pytest.mark.parametrize("name", ["fake_quantize", "with zero point", "per channel"])
def test_forward_mode_differentiates_like_backward_mode(name):
    kernel, x = KERNELS[name], X.clone().requires_grad_()
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(kernel(forward_ad.make_dual(x, TANGENT)))
    torch.testing.assert_close(result.primal, kernel(X))
    expected = gradient_of(kernel)
    assert 0 < int((expected == 0).sum()) < 8
    torch.testing.assert_close(result.tangent, expected)


def test_a_gradient_in_forward_mode_is_left_alone():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X.clone(), torch.ones_like(X))
        assert forward_ad.unpack_dual(map_gradient(dual, lambda g: 0 * g)).tangent.sum() == 8


def test_the_gradient_belongs_to_the_scale_of_its_own_forward():
    """A range that moves with each batch is a buffer that changes before backward."""
    scale, x = torch.tensor(1.0), torch.tensor([0.0, 2.0, 9.0], requires_grad=True)
    output = fake_quantize(x, scale, -3, 3)
    scale.fill_(100.0)
    output.sum().backward()
    assert x.grad.tolist() == [1, 1, 0]


def test_nan_stays_nan_and_infinity_is_clipped():
    x = torch.tensor([float("nan"), float("inf"), float("-inf")])
    output = fake_quantize(x, torch.tensor(0.5), -4, 3)
    assert math.isnan(output[0]) and output[1:].tolist() == [1.5, -2]
