import math

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.torch import (
    LSQPlusQuantizer,
    LsqPlusQuantizer,
    LSQQuantizer,
    LsqQuantizer,
    QuantType,
)

BOTH = pytest.mark.parametrize("cls", [LSQQuantizer, LSQPlusQuantizer])


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def only(quantizer):
    (wrapper,) = quantizer.get_modules_wrapper()
    return wrapper


def linear(cls=LSQQuantizer, optimizer=None, **rule):
    torch.manual_seed(0)
    model = nn.Linear(10, 6)
    made = None if optimizer is None else optimizer(model)
    quantizer = cls(model, [rule], made)
    quantizer.compress()
    return model, quantizer, made


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_scale_of_a_weight_starts_as_in_the_paper(bits, granularity):
    _, quantizer, _ = linear(quant_types=["weight"], quant_bits=bits, granularity=granularity)
    weight = np.abs(only(quantizer).weight.detach().numpy())
    mean = weight.mean() if granularity == "per_tensor" else weight.mean(1)
    expected = 2 * mean / math.sqrt(2 ** (bits - 1) - 1)
    np.testing.assert_allclose(only(quantizer).weight_scale.detach(), expected, rtol=1e-5)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_group"])
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_the_gradient_of_a_weights_scale_is_that_of_the_paper(bits, granularity):
    rule = {"quant_types": ["weight"], "quant_bits": bits, "granularity": granularity}
    rule |= {"group_size": 4} if granularity == "per_group" else {}
    model, quantizer, _ = linear(**rule)
    wrapper = only(quantizer)
    x, upstream = numbers(16, 10), numbers(16, 6, seed=1)
    model(x).backward(upstream)
    weight, grad = wrapper.weight.detach().double(), (upstream.T @ x).double()
    held = quantizer.qparams(wrapper, QuantType.WEIGHT)
    scale = held.spread(held.scale, weight).double().expand_as(weight)
    top = 2 ** (bits - 1) - 1
    ratio = weight / scale
    inside = ratio.round().abs() <= top
    slope = torch.where(inside, ratio.round() - ratio, ratio.clamp(-top, top))
    share = weight.numel() / wrapper.weight_scale.numel()
    terms = (grad * slope / math.sqrt(share * top)).numpy()
    if granularity == "per_tensor":
        expected = terms.sum()
    elif granularity == "per_channel":
        expected = terms.sum(1)
    else:
        expected = np.stack([terms[:, i : i + 4].sum(1) for i in (0, 4, 8)], 1)
    np.testing.assert_allclose(wrapper.weight_scale.grad, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(wrapper.weight.grad, torch.where(inside, grad, 0.0), rtol=1e-4)


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize("dtype", ["int", "uint"])
def test_weights_below_zero_survive_every_scheme(scheme, dtype):
    model, quantizer, _ = linear(quant_types=["weight"], quant_scheme=scheme, quant_dtype=dtype)
    wrapper = only(quantizer)
    raw, seen = wrapper.weight.detach(), model.weight.detach()
    assert float((seen - raw).norm() / raw.norm()) < 0.2
    held = quantizer.qparams(wrapper, QuantType.WEIGHT)
    torch.testing.assert_close(held.to_reals(held.to_integers(seen)), seen)
    model(numbers(4, 10)).square().sum().backward()
    assert bool(wrapper.weight_scale.grad.all())


def test_an_all_zero_weight_keeps_a_scale_to_divide_by():
    model = nn.Linear(3, 3)
    nn.init.zeros_(model.weight)
    LSQQuantizer(model, [{"quant_types": ["weight"]}]).compress()
    assert torch.equal(model.weight, torch.zeros(3, 3))
    model(torch.randn(2, 3)).sum().backward()


# -- activations -----------------------------------------------------------------------------------


@BOTH
def test_the_scale_of_an_activation_starts_with_the_first_batch(cls):
    model, quantizer, _ = linear(cls, quant_types=["input"], quant_bits=4)
    wrapper = only(quantizer)
    model.eval()(numbers(64, 10) * 9)
    assert not wrapper.input_is_known, "only training sets it"
    x = numbers(64, 10).relu()
    model.train()(x)
    expected = min(2 * float(x.mean()) / math.sqrt(15), float(x.max()) / 15)
    assert float(wrapper.input_scale.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(quantizer.qparams(wrapper, QuantType.INPUT).zero_point) == 0
    model(x * 100)
    assert float(wrapper.input_scale.detach()) == pytest.approx(expected, rel=1e-5)


@BOTH
def test_the_gradient_of_an_activations_scale_is_that_of_the_paper(cls):
    model, quantizer, _ = linear(cls, quant_types=["input"], quant_bits=3)
    wrapper = only(quantizer)
    model(numbers(64, 10))
    x = numbers(32, 10, seed=4).requires_grad_()
    upstream = numbers(32, 6, seed=5)
    model.zero_grad()
    model(x).backward(upstream)
    grad = (upstream @ model.weight.detach()).double()
    held = quantizer.qparams(wrapper, QuantType.INPUT)
    scale, zero = float(held.scale), float(held.zero_point)
    steps = x.detach().double() / scale
    inside = (steps.round() + zero >= 0) & (steps.round() + zero <= 7)
    ends = steps.clamp(-zero, 7 - zero)
    if cls is LSQPlusQuantizer:  # measured from the offset
        ends = ends - float(wrapper.input_offset.detach()) / scale
    slope = torch.where(inside, steps.round() - steps, ends)
    factor = 1 / math.sqrt(10 * 7)
    expected = float((grad * slope).sum()) * factor
    assert 0 < int((~inside).sum()) < x.numel()
    assert float(wrapper.input_scale.grad) == pytest.approx(expected, rel=1e-3)
    torch.testing.assert_close(x.grad, torch.where(inside, grad, 0.0).float())
    if cls is LSQPlusQuantizer:
        outside = float(grad[~inside].sum()) * factor
        assert float(wrapper.input_offset.grad) == pytest.approx(outside, rel=1e-3)


@BOTH
def test_zero_stays_exact_wherever_the_scales_go(cls):
    model, quantizer, optimizer = linear(
        cls,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        quant_types=["weight", "input", "output"],
        quant_bits=4,
    )
    for step in range(10):
        optimizer.zero_grad()
        model(numbers(16, 10, seed=step) + 0.3).square().mean().backward()
        optimizer.step()
        for kind in (QuantType.INPUT, QuantType.OUTPUT):
            held = quantizer.qparams(only(quantizer), kind)
            assert float(held.zero_point).is_integer()
            assert held.grid.low <= float(held.zero_point) <= held.grid.high
    model.eval()
    seen = []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    output = model(torch.zeros(2, 10))
    assert torch.equal(seen[0], torch.zeros(2, 10))
    held = quantizer.qparams(only(quantizer), QuantType.OUTPUT)
    torch.testing.assert_close(held.to_reals(held.to_integers(output)), output)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_train_and_keep_their_type(cls, dtype):
    torch.manual_seed(0)
    model = nn.Linear(10, 6).to(dtype)
    quantizer = cls(model, [{"quant_types": ["weight", "input", "output"]}])
    quantizer.compress()
    for _ in range(2):
        output = model(numbers(16, 10, dtype=dtype))
    output.sum().backward()
    assert output.dtype == dtype
    for name, parameter in only(quantizer).named_parameters():
        assert parameter.dtype in (torch.float32, dtype) and parameter.element_size() >= 4, name
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name


@BOTH
def test_an_addition_in_place_may_follow_a_quantized_output(cls):
    model, quantizer, _ = linear(cls, quant_types=["output"], quant_bits=4)
    x = numbers(16, 10)
    model(x)
    grads = []
    for is_in_place in (False, True):
        model.zero_grad()
        output = model(x)
        output = output.add_(x[:, :6]) if is_in_place else output + x[:, :6]
        output.square().sum().backward()
        grads.append([p.grad.clone() for p in (*model.parameters(),)])
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)
    assert len(list(only(quantizer).parameters())) == (1 if cls is LSQQuantizer else 2)


# -- training --------------------------------------------------------------------------------------


def test_scales_are_trained_without_decay_and_leave_with_strip():
    _, quantizer, optimizer = linear(
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    own = {id(p) for p in only(quantizer).parameters()}
    assert {id(p) for p in optimizer.param_groups[1]["params"]} == own
    quantizer.strip()
    assert len(optimizer.param_groups) == 1


def test_scales_stay_positive_even_with_steps_that_are_too_large():
    model, quantizer, optimizer = linear(
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e4)
    )
    for step in range(4):
        optimizer.zero_grad()
        model(numbers(8, 10, seed=step)).clamp(-1, 1).sum().backward()
        optimizer.step()
        assert all(bool((p > 0).all()) for p in only(quantizer).parameters())


@BOTH
def test_learning_scales_makes_up_for_a_bad_start(cls):
    torch.manual_seed(0)
    x = torch.randn(256, 10)
    model = nn.Linear(10, 6)
    target = model(x).detach()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    quantizer = cls(model, [{"quant_types": ["weight", "input"], "quant_bits": 4}], optimizer)
    quantizer.compress()
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[-10:]) < losses[0] / 3


@BOTH
def test_calibration_starts_the_scales_too(cls):
    model, quantizer, _ = linear(cls, quant_types=["weight", "input"])
    batches = [numbers(16, 10, seed=i) for i in range(3)]
    quantizer.calibrate(batches)
    low, high = (float(x) for x in torch.cat(batches).aminmax())
    held = quantizer.qparams(only(quantizer), QuantType.INPUT)
    assert float(held.scale) == pytest.approx((high - low) / 255, rel=1e-5)
    assert float(held.zero_point) == round(-low / (high - low) * 255)
    before = float(held.scale)
    model.train()(numbers(4, 10) * 100)
    assert float(quantizer.qparams(only(quantizer), QuantType.INPUT).scale) == before


@BOTH
def test_learned_scales_travel_with_state_and_with_the_state_dict(cls, tmp_path):
    model, quantizer, optimizer = linear(
        cls, lambda model: torch.optim.SGD(model.parameters(), lr=0.05)
    )
    for step in range(3):
        model(numbers(8, 10, seed=step)).square().sum().backward()
        optimizer.step()
    quantizer.state().save(tmp_path / "state")
    expected = model.eval()(numbers(4, 10)).detach()
    for way in ("state", "state dict"):
        other, second, _ = linear(cls)
        if way == "state":
            other.load_state_dict(model.state_dict())
            second.load_state(tmp_path / "state")
        else:
            other.load_state_dict(model.state_dict())
        assert torch.equal(other.eval()(numbers(4, 10)), expected), way


def test_names_of_other_times_are_the_same_classes():
    assert LsqQuantizer is LSQQuantizer and LsqPlusQuantizer is LSQPlusQuantizer


@pytest.mark.parametrize("algorithm", [LSQQuantizer, LSQPlusQuantizer])
def test_it_runs_in_inference_mode(algorithm):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(16, 4)
    algorithm(model, [{"op_types": ["Linear"]}], example_inputs=x).compress()
    model(x)
    model.eval()
    with torch.no_grad():
        expected = model(x)
    with torch.inference_mode():
        assert torch.equal(model(x), expected)
