import math

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError
from lilliput.frameworks.torch.fakequant import learned_fake_quantize
from lilliput.torch import (
    LSQPlusQuantizer,
    LSQQuantizer,
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
    rule |= {"quant_scheme": "symmetric"}  # as the paper has it
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
    (group,) = optimizer.param_groups
    own = list(only(quantizer).parameters())
    assert {id(p) for p in own} == {id(p) for p in group["params"][2:]}
    before = [p.detach().clone() for p in own]
    for parameter in group["params"]:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(torch.equal(p, x) for p, x in zip(own, before, strict=True))
    assert optimizer.param_groups == [group] and len(group["params"]) == 4
    quantizer.strip()
    assert optimizer.param_groups == [group] and len(group["params"]) == 2
    assert len(optimizer.state) == 2
    assert not optimizer._optimizer_step_pre_hooks


SCHEDULERS = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau,
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
            torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
        ],
        milestones=[2],
    ),
}


@pytest.mark.parametrize("name", list(SCHEDULERS))
@pytest.mark.parametrize("when", ["before", "after"])
def test_schedulers_made_before_or_after_move_the_rate_of_scales_with_that_of_weights(name, when):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    quantizer = LSQQuantizer(model, [{"quant_types": ["weight"], "quant_bits": 4}], optimizer)
    made = SCHEDULERS[name](optimizer) if when == "before" else None
    quantizer.compress()
    scheduler = made or SCHEDULERS[name](optimizer)
    (scale,) = only(quantizer).parameters()
    velocity = torch.zeros_like(scale)
    for step in range(6):
        if step == 4:
            quantizer.strip()  # the scheduler goes on with the plain model
        optimizer.zero_grad()
        model(numbers(8, 4)).square().sum().backward()
        rate, momentum = (optimizer.param_groups[0][key] for key in ("lr", "momentum"))
        expected = scale.detach().clone()
        if step < 4:
            velocity = momentum * velocity + scale.grad
            expected = expected - rate * velocity
        optimizer.step()
        torch.testing.assert_close(scale.detach(), expected.clamp(min=1e-8))
        scheduler.step(*([1.0] if name == "plateau" else []))


def test_scales_follow_the_learning_rate_of_their_weight():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[1].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    quantizer = LSQQuantizer(model, [{"quant_types": ["weight"]}], optimizer)
    quantizer.compress()
    first, second = (next(w.parameters()) for w in quantizer.get_modules_wrapper())
    before = [first.detach().clone(), second.detach().clone()]
    model(numbers(8, 4)).square().sum().backward()
    optimizer.step()
    assert torch.equal(first, before[0]) and not torch.equal(second, before[1])


def test_optimizers_with_named_parameters_know_the_names_of_scales():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    quantizer = LSQQuantizer(model, [{"quant_types": ["weight"]}], optimizer)
    quantizer.compress()
    (group,) = optimizer.state_dict()["param_groups"]
    assert group["param_names"][:2] == ["weight", "bias"]
    assert len(group["param_names"]) == len(group["params"]) == 3
    quantizer.strip()
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


def test_lbfgs_trains_weights_and_scales():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    quantizer = LSQQuantizer(model, [{"quant_types": ["weight"], "quant_bits": 4}], optimizer)
    quantizer.compress()
    (scale,) = only(quantizer).parameters()
    before, losses = scale.detach().clone(), []

    def closure():
        optimizer.zero_grad()
        loss = (model(numbers(16, 4)) - 1).square().mean()
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    for _ in range(5):
        optimizer.step(closure)
    assert losses[-1] < losses[0] and not torch.equal(scale, before)
    with pytest.raises(ConfigError, match="this LBFGS has made steps without the learned scales"):
        other = LSQPlusQuantizer(quantizer.strip(), [{"quant_types": ["weight"]}], optimizer)
        other.compress()


def test_muon_is_refused_with_the_way_that_works():
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.1)
    quantizer = LSQQuantizer(model, [{"quant_types": ["weight"], "quant_bits": 4}], optimizer)
    with pytest.raises(ConfigError, match=r"Muon cannot train the scales.*bind_optimizer"):
        quantizer.compress()
    assert type(model) is nn.Linear and len(optimizer.param_groups[0]["params"]) == 1
    quantizer = LSQQuantizer(model, [{"quant_types": ["weight"], "quant_bits": 4}])
    quantizer.compress()
    scales = [p for w in quantizer.get_modules_wrapper() for p in w.parameters()]
    second = torch.optim.Adam(scales, lr=1e-3)
    quantizer.bind_optimizer(second)
    before = [p.detach().clone() for p in (*scales, *model.parameters())]
    model(numbers(8, 4)).square().sum().backward()
    optimizer.step()
    second.step()
    after = [*scales, *model.parameters()]
    assert not any(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert quantizer.current_step == 1


def test_an_embedding_with_sparse_gradients_keeps_them():
    torch.manual_seed(0)
    models = [nn.Embedding(10, 4, sparse=sparse) for sparse in (True, False)]
    models[1].load_state_dict(models[0].state_dict())
    gradients = []
    for model in models:
        quantizer = LSQQuantizer(model, [{"quant_bits": 3, "op_types": ["Embedding"]}])
        quantizer.compress()
        model(torch.tensor([[1, 3], [3, 7]])).square().sum().backward()
        gradients.append((only(quantizer).weight.grad, only(quantizer).weight_scale.grad))
    (sparse, scale), (dense, expected) = gradients
    assert sparse.is_sparse
    torch.testing.assert_close(sparse.to_dense(), dense)
    torch.testing.assert_close(scale, expected)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_the_gradient_of_a_scale_is_exact_on_fine_grids_and_large_weights(bits):
    weight = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    upstream = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(1))
    high = 2 ** (bits - 1) - 1
    scale = torch.tensor(float(weight.abs().mean()) * 2 / math.sqrt(high), requires_grad=True)
    rounded = learned_fake_quantize(weight, scale, -high, high, 1.0)
    rounded.backward(upstream)
    step = scale.detach().double()
    ratio, integers = weight.double() / step, (rounded.detach() / step).round()
    terms = torch.where(ratio.abs() <= high, integers - ratio, integers)
    expected = float((terms * upstream.double()).sum())
    assert float(scale.grad) == pytest.approx(expected, rel=1e-4)


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
