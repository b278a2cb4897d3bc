import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lilliput.compat.nni.classes.older_names import OlderNames
from lilliput.errors import ConfigError, StageError
from lilliput.torch import LevelPruner, LSQQuantizer, QATQuantizer, QuantType


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def only(quantizer):
    (wrapper,) = quantizer.get_modules_wrapper()
    return wrapper


def linear(*args, **settings):
    torch.manual_seed(0)
    model = nn.Linear(10, 6)
    rule = {key: settings.pop(key) for key in list(settings) if key.startswith(("quant_", "gran"))}
    rule |= {key: settings.pop(key) for key in ("group_size",) if key in settings}
    quantizer = QATQuantizer(model, [rule], *args, **settings)
    quantizer.compress()
    return model, quantizer


def round_symmetric(weight, bits, axes):
    """Integers around zero that cover each slice, in NumPy."""
    top = 2 ** (bits - 1) - 1
    scale = np.abs(weight).max(axis=axes, keepdims=True) / top
    return np.round(weight / scale) * scale


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("module", "axes"),
    [
        (lambda: nn.Linear(10, 6), (1,)),
        (lambda: nn.Conv2d(4, 6, 3), (1, 2, 3)),
        (lambda: nn.Conv2d(4, 4, 3, groups=4), (1, 2, 3)),
        (lambda: nn.ConvTranspose2d(4, 6, 3), (0, 2, 3)),
    ],
    ids=["linear", "conv", "depthwise", "transposed"],
)
def test_weights_have_a_scale_for_each_output_channel(module, axes, bits):
    torch.manual_seed(0)
    model = module()
    weight = model.weight.detach().double().numpy()
    quantizer = QATQuantizer(model, [{"quant_types": ["weight"], "quant_bits": bits}])
    quantizer.compress()
    expected = round_symmetric(weight, bits, axes)
    np.testing.assert_allclose(model.weight.detach(), expected, rtol=1e-5, atol=1e-7)
    held = quantizer.qparams(only(quantizer), QuantType.WEIGHT)
    assert held.scale.shape == (model.weight.shape[held.grid.axis],)
    torch.testing.assert_close(held.to_reals(held.to_integers(model.weight)), model.weight)


def round_affine(values, bits):
    low, high = np.minimum(values.min(1, keepdims=True), 0), values.max(1, keepdims=True)
    scale = (np.maximum(high, 0) - low) / (2**bits - 1)
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(values / scale) + zero, 0, 2**bits - 1) - zero) * scale


@pytest.mark.parametrize("scheme", [None, "affine", "symmetric"])
def test_weights_in_groups_and_a_last_group_that_is_shorter(scheme):
    rule = {"quant_types": ["weight"], "quant_bits": 4, "granularity": "per_group", "group_size": 4}
    model, quantizer = linear(**rule, **({"quant_scheme": scheme} if scheme else {}))
    weight = only(quantizer).weight.detach().double().numpy()
    groups = [weight[:, i : i + 4] for i in (0, 4, 8)]
    if scheme == "symmetric":
        expected = [round_symmetric(group, 4, (1,)) for group in groups]
    else:
        expected = [round_affine(group, 4) for group in groups]
    np.testing.assert_allclose(model.weight.detach(), np.concatenate(expected, 1), rtol=1e-5)
    assert quantizer.qparams(only(quantizer), QuantType.WEIGHT).scale.shape == (6, 3)


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize("dtype", ["int", "uint"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_other_schemes_of_weights(scheme, dtype, granularity):
    model, quantizer = linear(
        quant_types=["weight"], quant_scheme=scheme, quant_dtype=dtype, granularity=granularity
    )
    raw, held = only(quantizer).weight, quantizer.qparams(only(quantizer), QuantType.WEIGHT)
    reach = held.spread(held.scale, raw) * 0.501
    assert bool(((model.weight - raw).abs() <= reach).all())
    torch.testing.assert_close(held.to_reals(held.to_integers(model.weight)), model.weight)


def test_the_gradient_of_a_covered_weight_is_that_of_the_rounded_one():
    model, quantizer = linear(quant_types=["weight"], quant_bits=3)
    x, upstream = numbers(8, 10), numbers(8, 6, seed=1)
    model(x).backward(upstream)
    torch.testing.assert_close(only(quantizer).weight.grad, upstream.T @ x)


def test_pruned_weights_are_exact_zeros_and_cost_no_range():
    torch.manual_seed(0)
    model = nn.Linear(10, 6)
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    quantizer = QATQuantizer(model, None)
    quantizer.compress()
    assert int((model.weight == 0).sum()) >= 30
    held = quantizer.qparams(only(quantizer), QuantType.WEIGHT)
    torch.testing.assert_close(held.to_reals(held.to_integers(model.weight)), model.weight)


# -- ranges of activations -------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99])
def test_ranges_are_the_moving_average_of_numpy(momentum):
    model, quantizer = linear(momentum=momentum, quant_types=["input", "output"])
    low = high = None
    for step in range(8):
        x = numbers(32, 10, seed=step) * (step + 1)
        model(x)
        new_low, new_high = float(x.min()), float(x.max())
        low = new_low if low is None else momentum * low + (1 - momentum) * new_low
        high = new_high if high is None else momentum * high + (1 - momentum) * new_high
    wrapper = only(quantizer)
    np.testing.assert_allclose([wrapper.input_low, wrapper.input_high], [low, high], rtol=1e-5)
    scale = (high - low) / 255
    np.testing.assert_allclose(wrapper.input_scale, scale, rtol=1e-5)
    assert float(wrapper.input_zero_point) == round(-low / scale)


def test_ranges_stand_still_in_eval_mode():
    model, quantizer = linear()
    model(numbers(8, 10))
    before = {key: value.clone() for key, value in only(quantizer).tensors().items()}
    model.eval()(numbers(8, 10) * 100)
    assert all(torch.equal(before[k], v) for k, v in only(quantizer).tensors().items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("when", [0, 2])
def test_a_batch_with_nan_does_not_spoil_the_ranges(bad, when):
    ranges = []
    for is_poisoned in (False, True):
        model, quantizer = linear(momentum=0.9)
        for step in range(4):
            if is_poisoned and step == when:
                poison = numbers(8, 10)
                poison[3, 3] = bad
                model(poison)
            model(numbers(8, 10, seed=step))
        wrapper = only(quantizer)
        ranges.append([float(wrapper.input_low), float(wrapper.input_high)])
    np.testing.assert_allclose(*ranges, rtol=1e-6)


def test_nothing_but_zeros_is_no_range_to_start_from():
    model, quantizer = linear()
    model(torch.zeros(4, 10))
    x = numbers(32, 10)
    model(x)
    assert float(only(quantizer).input_high) == float(x.max())


def test_zero_is_exact_and_values_beyond_are_clipped():
    model, quantizer = linear(quant_types=["input"])
    model(numbers(64, 10))
    model.eval()
    seen = []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = torch.tensor([0.0, 1e6, -1e6, *[0.5] * 7])
    model(x)
    held = quantizer.qparams(only(quantizer), QuantType.INPUT)
    ends = held.to_reals(torch.tensor([255.0, 0.0]))
    assert seen[0][0] == 0 and seen[0][1] == ends[0] and seen[0][2] == ends[1]


def test_the_gradient_stops_where_an_activation_is_clipped():
    model, _ = linear(quant_types=["input"], momentum=0.0)
    model(numbers(64, 10))
    model.eval()
    x = numbers(4, 10)
    x[0, 0], x[1, 1] = 50, -50
    x.requires_grad_()
    model(x).sum().backward()
    assert x.grad[0, 0] == 0 and x.grad[1, 1] == 0 and int((x.grad == 0).sum()) == 2


def test_a_batch_without_samples_passes():
    model, quantizer = linear(quant_types=["weight", "input", "output"])
    model(numbers(8, 10))
    before = float(only(quantizer).input_low)
    assert model(torch.zeros(0, 10)).shape == (0, 6)
    assert float(only(quantizer).input_low) == before


def test_a_module_that_is_used_twice_has_one_range_for_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x).relu() * 10)

    torch.manual_seed(0)
    model = Twice()
    quantizer = QATQuantizer(model, None, momentum=0.5)
    quantizer.compress()
    seen = []
    model.layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]), prepend=True)
    x = numbers(16, 4)
    model(x).square().sum().backward()
    first, second = (float(tensor.detach().max()) for tensor in seen)
    assert float(only(quantizer).input_high) == pytest.approx((first + second) / 2)
    assert bool(only(quantizer).weight.grad.any())


def test_an_addition_in_place_may_follow_a_quantized_output():
    torch.manual_seed(0)
    results = []
    model = nn.Conv2d(2, 2, 1)
    QATQuantizer(model, [{"quant_types": ["weight", "input", "output"]}]).compress()
    x = numbers(2, 2, 4, 4)
    model(x)
    model.eval()
    for is_in_place in (False, True):
        model.zero_grad()
        output, other = model(x), x * 2
        if is_in_place:
            output += other
        else:
            output = output + other
        output.relu().square().sum().backward()
        results.append([p.grad.clone() for p in model.parameters()])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_train_and_keep_their_type(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
    quantizer = QATQuantizer(model, None, example_inputs=numbers(2, 10, dtype=dtype))
    quantizer.compress()
    output = model(numbers(16, 10, dtype=dtype))
    output.sum().backward()
    assert output.dtype == model[0].weight.dtype == dtype
    for wrapper in quantizer.get_modules_wrapper():
        assert wrapper.weight.grad.dtype == dtype and bool(wrapper.weight.grad.isfinite().all())
        held = quantizer.qparams(wrapper, QuantType.INPUT)
        assert held.scale.dtype == torch.float32 and 1e-4 < float(held.scale) < 0.1


# -- when ------------------------------------------------------------------------------------------


def delayed(rule=None, **settings):
    torch.manual_seed(0)
    model = nn.Linear(10, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    quantizer = QATQuantizer(model, [rule or {"quant_bits": 2}], optimizer, **settings)
    quantizer.compress()
    return model, quantizer, optimizer


@pytest.mark.parametrize("is_in_rule", [False, True])
def test_quantization_begins_when_it_is_time_and_ranges_before(is_in_rule):
    if is_in_rule:
        made = delayed({"quant_bits": 2, "quant_start_step": 3}, quant_start_step=99)
    else:
        made = delayed(quant_start_step=3)
    model, quantizer, optimizer = made
    x = numbers(16, 10)
    plain = nn.functional.linear(x, only(quantizer).weight, model.bias)
    for step in range(5):
        output = model(x)
        assert torch.equal(output, plain) == (step < 3), step
        output.sum().backward()
        optimizer.step()
    assert float(only(quantizer).input_high) == pytest.approx(float(x.max()))


def test_a_saved_state_goes_on_counting(tmp_path):
    model, quantizer, optimizer = delayed(quant_start_step=3)
    for _ in range(2):
        model(numbers(4, 10)).sum().backward()
        optimizer.step()
    quantizer.state().save(tmp_path / "state")
    _, second, optimizer = delayed(quant_start_step=3)
    second.load_state(tmp_path / "state")
    assert second.current_step == 2 and not only(second).is_on
    optimizer.step()
    assert only(second).is_on


def test_steps_by_hand_count_as_well():
    _, quantizer = linear(quant_start_step=2)
    states = []
    for _ in range(3):
        states.append(only(quantizer).is_on)
        quantizer.step()
    assert states == [False, False, True]


def normed(seed=0, **settings):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, bias=True), nn.BatchNorm2d(4), nn.ReLU())
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.2, 3)
        model[1].weight.normal_()
        model[1].bias.normal_()
    return model, numbers(8, 2, 6, 6)


def test_norms_are_frozen_when_it_is_time():
    model, x = normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    quantizer = QATQuantizer(model, None, optimizer, example_inputs=x, freeze_norm_step=2)
    quantizer.compress()
    means = []
    for step in range(4):
        model.train()
        output = model[1](model[0](x + step))
        output.sum().backward()
        optimizer.step()
        means.append(model[1].running_mean.clone())
    assert not torch.equal(means[0], means[1]), "they follow the batches at first"
    assert torch.equal(means[1], means[2]) and torch.equal(means[2], means[3])
    assert bool(model[1].weight.grad.any()), "and still learn"
    quantizer.strip()
    model.train()(x)
    assert not torch.equal(model[1].running_mean, means[3])


def test_freezing_goes_on_after_a_saved_state(tmp_path):
    model, x = normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    quantizer = QATQuantizer(model, None, optimizer, example_inputs=x, freeze_norm_step=1)
    quantizer.compress()
    model(x).sum().backward()
    optimizer.step()
    quantizer.state().save(tmp_path / "state")
    model, x = normed()
    second = QATQuantizer(model, None, example_inputs=x, freeze_norm_step=1)
    second.compress()
    second.load_state(tmp_path / "state")
    before = model[1].running_mean.clone()
    model.train()(x)
    assert torch.equal(model[1].running_mean, before)


# -- a batch norm behind a layer -------------------------------------------------------------------


@pytest.mark.parametrize("bits", [3, 8])
def test_a_scale_for_all_is_that_of_the_weight_with_its_norm_folded_in(bits):
    model, x = normed()
    norm = model[1]
    weight, bias = model[0].weight.detach().double(), model[0].bias.detach().double()
    rule = {"quant_types": ["weight"], "quant_bits": bits, "granularity": "per_tensor"}
    quantizer = QATQuantizer(model, [rule], example_inputs=x)
    quantizer.compress()
    factor = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach().double()
    folded = (weight * factor.view(-1, 1, 1, 1)).numpy()
    rounded = torch.from_numpy(round_symmetric(folded, bits, None))
    shift = (bias - norm.running_mean) * factor + norm.bias.detach()
    expected = nn.functional.conv2d(x.double(), rounded, shift).relu()
    torch.testing.assert_close(model.eval()(x).double(), expected, rtol=1e-4, atol=1e-4)
    held = quantizer.qparams(only(quantizer), QuantType.WEIGHT)
    seen = model[0].weight
    torch.testing.assert_close(held.to_reals(held.to_integers(seen)), seen, rtol=1e-4, atol=1e-6)
    assert held.scale.shape == (4,), "in terms of the weight itself, a scale for each channel"


@pytest.mark.parametrize("zeros", [1, 4])
def test_a_norm_that_multiplies_by_zero_is_no_reason_for_nan(zeros):
    """Residual blocks often start that way."""
    model, x = normed()
    with torch.no_grad():
        model[1].weight[:zeros] = 0
    rule = {"granularity": "per_tensor", "quant_types": ["weight"]}
    quantizer = QATQuantizer(model, [rule], example_inputs=x)
    quantizer.compress()
    model[:2](x).backward(numbers(8, 4, 4, 4, seed=2))
    assert bool(model.eval()(x).isfinite().all())
    assert bool(model[1].weight.grad[:zeros].all()), "it can grow"
    held = quantizer.qparams(only(quantizer), QuantType.WEIGHT)
    torch.testing.assert_close(
        held.to_reals(held.to_integers(model[0].weight)), model[0].weight, rtol=1e-4, atol=1e-6
    )


def test_with_a_scale_per_channel_the_norm_does_not_matter():
    model, x = normed()
    weights = []
    for example in (None, x):
        model, x = normed()
        quantizer = QATQuantizer(model, [{"quant_types": ["weight"]}], example_inputs=example)
        quantizer.compress()
        weights.append(model[0].weight.detach())
    assert torch.equal(*weights)


# -- the rest --------------------------------------------------------------------------------------


def test_training_makes_up_for_much_of_what_rounding_costs():
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()

    def network():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def fit(model, steps, rate):
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    def loss(model):
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model.eval()(x), y))

    trained = network()
    fit(trained, 150, 0.02)
    rules = [{"op_names": ["0"], "quant_types": ["weight"], "quant_bits": 3}]
    rules += [{"op_names": ["2"], "quant_bits": 3}]
    QATQuantizer(trained, rules, example_inputs=x, momentum=0.9).compress()
    trained.train()(x)
    rounded = loss(trained)
    trained.train()
    fit(trained, 100, 0.002)
    assert loss(trained) < rounded * 0.6


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 1.5, float("nan")])
def test_a_momentum_beyond_its_range_is_refused(momentum):
    with pytest.raises(ConfigError, match="momentum"):
        linear(momentum=momentum)


def test_freezing_needs_to_know_the_network():
    with pytest.raises(ConfigError, match="freeze_norm_step needs example_inputs"):
        linear(freeze_norm_step=3)


def test_reset_starts_over():
    model, quantizer = linear()
    model(numbers(8, 10) * 100)
    OlderNames.reset(quantizer)
    x = numbers(8, 10)
    model(x)
    assert float(only(quantizer).input_high) == float(x.max())


def test_a_range_may_be_set_by_hand():
    _, quantizer = linear()
    with pytest.raises(StageError, match="not known yet"):
        quantizer.qparams(only(quantizer), QuantType.INPUT)
    quantizer.set_range(only(quantizer), "input", -1.0, 1.55)
    held = quantizer.qparams(only(quantizer), QuantType.INPUT)
    assert float(held.scale) == pytest.approx(0.01) and float(held.zero_point) == 100


def checkpointed_step(run):
    """Return ranges and gradients after two forwards and one backward of both."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model = nn.Sequential(block, nn.Linear(8, 2))
    quantizer = QATQuantizer(model, [{"quant_bits": 4}], momentum=0.5)
    quantizer.compress()
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 8, generator=generator) * size for size in (1.0, 4.0, 2.0)]
    model(batches[0])
    inputs = [batch.requires_grad_() for batch in batches]
    # The last two are the same: only their order tells their grids apart.
    outputs = [model[1](run(block, x)) for x in (inputs[1], inputs[2], inputs[2])]
    sum(y.square().sum() for y in outputs).backward()
    wrappers = quantizer.get_modules_wrapper()
    tensors = {f"{w.name} {k}": t.clone() for w in wrappers for k, t in w.tensors().items()}
    return tensors, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_changes_neither_ranges_nor_gradients(reentrant):
    expected, gradients = checkpointed_step(lambda block, x: block(x))
    found, others = checkpointed_step(
        lambda block, x: checkpoint(block, x, use_reentrant=reentrant)
    )
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    for name, gradient in others.items():
        torch.testing.assert_close(gradient, gradients[name], msg=name)


def test_strip_leaves_norms_that_the_user_has_frozen_as_they_are():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
    )
    x = torch.randn(8, 3, 2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    quantizer = QATQuantizer(model, None, optimizer, example_inputs=x, freeze_norm_step=0)
    quantizer.compress()
    model[1].eval()
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
    means = [model[i].running_mean.clone() for i in (1, 4)]
    model(x)  # both norms are frozen by now
    assert all(
        torch.equal(model[i].running_mean, mean) for i, mean in zip((1, 4), means, strict=True)
    )
    assert model[4].training
    quantizer.strip()
    assert not model[1].training
    assert model[4].training
    assert not model[4]._forward_hooks and not model[4]._forward_pre_hooks
    model(x)
    assert torch.equal(model[1].running_mean, means[0])


def test_frozen_norms_compile_as_one_graph():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    x = torch.randn(8, 3, 2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    quantizer = QATQuantizer(model, None, optimizer, example_inputs=x, freeze_norm_step=1)
    quantizer.compress()
    model(x).sum().backward()
    optimizer.step()
    mean = model[1].running_mean.clone()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    twin = copy.deepcopy(model)
    torch.testing.assert_close(compiled(x), twin(x))
    assert torch.equal(model[1].running_mean, mean)
    assert model[1].training


@pytest.mark.parametrize("kind", [QATQuantizer, LSQQuantizer])
def test_sizes_of_a_compiled_model_may_change(kind):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 3, 5, 5)
    kind(model, None, optimizer, example_inputs=x).compress()
    model(x)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for inputs in (x, torch.randn(4, 3, 7, 6).to(memory_format=torch.channels_last)):
        twin = copy.deepcopy(model)
        outputs, expected = compiled(inputs), twin(inputs)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(
            torch.autograd.grad(outputs.square().sum(), list(model.parameters())),
            torch.autograd.grad(expected.square().sum(), list(twin.parameters())),
        )


# torch looks at the gradient of a tensor it compiles for, and means to hide the warning itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    "order", ["checkpoint in a compiled model", "compiled model in a checkpoint"]
)
def test_checkpointing_and_compiling_go_together(order):
    def step(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        quantizer = QATQuantizer(model, [{"quant_bits": 4}], momentum=0.5)
        quantizer.compress()
        model(torch.randn(8, 8))
        inputs = (3 * torch.randn(8, 8)).requires_grad_()
        wrap(model)(inputs).square().sum().backward()
        highs = [float(w.input_high) for w in quantizer.get_modules_wrapper()]
        return highs, [p.grad for p in model.parameters()]

    def compiled(function):
        return torch.compile(function, backend="aot_eager")

    def wrap(model):
        if order == "checkpoint in a compiled model":
            return compiled(lambda x: checkpoint(model, x, use_reentrant=False))
        return lambda x: checkpoint(compiled(model), x, use_reentrant=False)

    highs, gradients = step(wrap)
    expected, others = step(lambda model: model)
    assert highs == pytest.approx(expected)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other)
