import copy

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.compat.nni.classes.older_names import OlderNames
from lilliput.errors import ConfigError
from lilliput.frameworks.torch import lab as torch_lab
from lilliput.ops.fakequant import fake_quantize
from lilliput.quantization.dorefa import dorefa_gradient, dorefa_weight
from lilliput.testing.observe import Anatomy
from lilliput.torch import DoReFaQuantizer, LevelPruner, QuantType


def paper(weight, bits):
    """Equation 9 of the paper, in NumPy."""
    if bits == 1:
        return np.sign(weight) * np.abs(weight).mean()
    levels = 2**bits - 1
    squeezed = np.tanh(weight)
    unit = squeezed / (2 * np.abs(squeezed).max()) + 0.5
    return 2 * np.round(levels * unit) / levels - 1


def paper_gradient(gradient, bits, noise):
    """Equation 12, with noise from -1/2 to 1/2."""
    levels = 2**bits - 1
    largest = np.abs(gradient).max(axis=tuple(range(1, gradient.ndim)), keepdims=True)
    unit = gradient / (2 * largest) + 0.5 + noise / levels
    return 2 * largest * (np.round(levels * np.clip(unit, 0, 1)) / levels - 0.5)


def layer(bits=6, quant_types=("weight",), module=None):
    torch.manual_seed(0)
    module = nn.Linear(6, 5) if module is None else module
    rule = {"quant_types": list(quant_types), "quant_bits": 4, "gradient_bits": bits}
    quantizer = DoReFaQuantizer(module, [rule])
    return quantizer.compress(), quantizer


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_weights_follow_the_paper(bits):
    torch.manual_seed(0)
    weight = torch.randn(20, 30, dtype=torch.float64)
    np.testing.assert_allclose(
        dorefa_weight(weight, bits).numpy(), paper(weight.numpy(), bits), atol=1e-15
    )
    assert len(dorefa_weight(weight, bits).unique()) <= 2**bits


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_the_gradient_passes_the_rounding_and_is_exact_elsewhere(bits):
    torch.manual_seed(0)
    weight = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(5, 6, dtype=torch.float64)
    dorefa_weight(weight, bits).backward(upstream)
    smooth = weight.detach().clone().requires_grad_()
    if bits == 1:
        reference = smooth  # straight through
    else:
        squeezed = smooth.tanh()
        reference = squeezed / squeezed.abs().max()
    reference.backward(upstream)
    torch.testing.assert_close(weight.grad, smooth.grad)


def test_the_documented_configuration_trains():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    config = [
        {"quant_types": ["weight"], "quant_bits": {"weight": 8}, "op_types": ["Conv2d", "Linear"]}
    ]
    losses = train(model, config)
    assert losses[-1] < losses[0] / 2


def train(model, config, steps=40):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    DoReFaQuantizer(model, config, optimizer).compress()
    x, y = torch.randn(32, 1, 6, 6), torch.arange(32) % 2
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_an_all_zero_weight_gives_finite_values():
    assert bool(torch.isfinite(dorefa_weight(torch.zeros(3, 3), 4)).all())


@pytest.mark.parametrize("is_pruned", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 3, 7, 8, 12, 15])
def test_weights_lie_on_the_integers_that_qparams_names(bits, is_pruned):
    torch.manual_seed(0)
    model = nn.Linear(40, 30)
    if is_pruned:
        LevelPruner(model, [{"sparsity": 0.5}]).compress()
    quantizer = DoReFaQuantizer(model, [{"quant_bits": bits}])
    quantizer.compress()
    (wrapper,) = quantizer.get_modules_wrapper()
    held = quantizer.qparams(wrapper, QuantType.WEIGHT)
    assert (held.grid.bits, held.grid.is_signed, held.grid.low) == (bits + 1, True, 1 - 2**bits)
    integers = held.to_integers(model.weight.detach())
    torch.testing.assert_close(held.to_reals(integers), model.weight.detach(), rtol=1e-6, atol=0)
    seen = integers[integers != 0] if is_pruned else integers
    assert bool((seen % 2 == 1).all()), "the odd multiples, and zero where it was pruned"
    assert float((integers == 0).float().mean()) == (0.5 if is_pruned else 0)


def test_what_no_integer_type_holds_has_no_grid():
    quantizer = DoReFaQuantizer(nn.Linear(2, 2), [{"quant_bits": 16}])
    quantizer.compress()
    (wrapper,) = quantizer.get_modules_wrapper()
    assert [quantizer.qparams(wrapper, kind) for kind in QuantType] == [None] * 3


# -- activations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["input", "output"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_activations_are_cut_to_one_and_rounded(bits, target):
    torch.manual_seed(0)
    model = nn.Identity()
    quantizer = DoReFaQuantizer(
        model, [{"op_types": ["Identity"], "quant_types": [target], "quant_bits": bits}]
    )
    quantizer.compress()
    x = (torch.randn(50, 8) + 0.5).requires_grad_()
    upstream = torch.randn(50, 8)
    output = model(x)
    output.backward(upstream)
    levels = 2**bits - 1
    expected = np.round(np.clip(x.detach().numpy(), 0, 1).astype(np.float64) * levels) / levels
    np.testing.assert_allclose(output.detach().numpy(), expected, rtol=1e-6)
    inside = (x >= 0) & (x <= 1)
    assert torch.equal(x.grad, torch.where(inside, upstream, 0.0))
    held = quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType(target))
    assert (held.grid.dtype, held.is_result) == (f"uint{bits}", False)
    assert torch.equal(output.detach(), fake_quantize(x.detach(), held)), "what exporters rely on"


def test_half_precision_comes_back_as_it_was():
    model = nn.Linear(4, 4).half()
    rule = {"quant_types": ["weight", "input", "output"], "quant_bits": 2, "gradient_bits": 4}
    DoReFaQuantizer(model, [rule]).compress()
    x = torch.rand(3, 4, dtype=torch.float16, requires_grad=True)
    output = model(x)
    output.sum().backward()
    assert output.dtype == x.grad.dtype == model.weight.dtype == torch.float16
    assert set(output.detach().mul(3).round().unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}


# -- gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (4, 6), (3, 2, 5, 5)])
@pytest.mark.parametrize("bits", [1, 2, 3, 6, 8])
def test_gradients_follow_the_paper(bits, shape):
    torch.manual_seed(bits)
    gradient = torch.randn(shape, dtype=torch.float64)
    torch.manual_seed(5)
    noise = torch.rand_like(gradient).numpy() - 0.5
    torch.manual_seed(5)
    rounded = dorefa_gradient(gradient, bits).numpy()
    np.testing.assert_allclose(rounded, paper_gradient(gradient.numpy(), bits, noise), atol=1e-14)
    largest = np.abs(gradient.numpy()).reshape(shape[0], -1).max(1)
    for sample, top in zip(rounded, largest, strict=True):
        assert len(np.unique(np.round(sample / top, 9))) <= 2**bits


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_rounded_gradient_is_right_on_average(bits):
    torch.manual_seed(0)
    draws = 20000
    gradient = torch.randn(9, dtype=torch.float64)
    mean = dorefa_gradient(gradient.expand(draws, 9), bits).mean(0)
    step = 2 * gradient.abs().max() / (2**bits - 1)
    # Rounding up or down is off by step / 2 at most in standard deviation: five of them.
    assert bool(((mean - gradient).abs() <= 5 * step / 2 / draws**0.5).all())


def test_gradients_without_anything_to_scale_by():
    assert torch.equal(dorefa_gradient(torch.zeros(2, 3), 4), torch.zeros(2, 3))
    assert dorefa_gradient(torch.zeros(0, 3), 4).shape == (0, 3)
    assert dorefa_gradient(torch.tensor(0.3), 4) == 0.3
    largest = torch.full((2, 3), torch.finfo(torch.float32).max)
    assert torch.equal(dorefa_gradient(largest, 4), largest)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_an_overflow_stays_visible_to_a_gradient_scaler(bad):
    gradient = torch.ones(2, 3)
    gradient[0, 1] = bad
    rounded = dorefa_gradient(gradient, 4)
    assert not bool(rounded[0].isfinite().all()) and torch.equal(rounded[1], gradient[1])


def test_a_layer_computes_its_gradients_from_the_rounded_one():
    model, quantizer = layer(bits=3)
    x = torch.randn(8, 6, requires_grad=True)
    upstream = torch.randn(8, 5)
    raw = quantizer.get_modules_wrapper()[0].weight
    torch.manual_seed(1)
    model(x).backward(upstream)
    torch.manual_seed(1)
    rounded = dorefa_gradient(upstream, 3)
    assert not torch.equal(rounded, upstream)
    torch.testing.assert_close(model.bias.grad, rounded.sum(0))
    torch.testing.assert_close(x.grad, rounded @ model.weight.detach())
    reference = raw.detach().clone().requires_grad_()
    dorefa_weight(reference, 4).backward(rounded.T @ x.detach())
    torch.testing.assert_close(raw.grad, reference.grad)


def test_the_forward_is_that_without_gradient_bits_and_draws_no_noise():
    model, _ = layer()
    torch.manual_seed(0)
    plain = nn.Linear(6, 5)
    DoReFaQuantizer(plain, [{"quant_bits": 4}]).compress()
    x = torch.randn(3, 6)
    torch.manual_seed(2)
    assert torch.equal(model(x), plain(x))
    after = torch.rand(1)
    torch.manual_seed(2)
    assert torch.equal(after, torch.rand(1))


def test_with_a_quantized_output_the_rounded_gradient_is_the_one_inside():
    model, _ = layer(bits=2, quant_types=["weight", "output"])
    x, upstream = torch.randn(8, 6), torch.randn(8, 5)
    torch.manual_seed(1)
    model(x).backward(upstream)
    before = nn.functional.linear(x, model.weight, model.bias).detach()
    torch.manual_seed(1)
    rounded = dorefa_gradient(torch.where((before >= 0) & (before <= 1), upstream, 0.0), 2)
    torch.testing.assert_close(model.bias.grad, rounded.sum(0))


def test_an_operation_in_place_may_follow():
    torch.manual_seed(0)
    rule = {"op_types": ["Linear"], "gradient_bits": 8}
    for types in (["weight"], ["weight", "output"]):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        DoReFaQuantizer(model, [{**rule, "quant_types": types}]).compress()
        model(torch.randn(5, 4)).sum().backward()
        assert bool(model[0].bias.grad.any())
        output = model[0](torch.randn(5, 4))
        output += 1
        output.square().sum().backward()


class First(nn.Module):
    """The first output of a module that has several."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("kind", ["lstm", "twice", "tied"])
def test_each_gradient_is_rounded_once(kind, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "lilliput.quantization.dorefa.dorefa_gradient",
        lambda gradient, bits: calls.append(gradient.shape) or gradient,
    )
    torch.manual_seed(0)
    linear = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    if kind == "tied":
        other.weight = linear.weight
    modules = {
        "lstm": First(nn.LSTM(4, 4)),
        "twice": nn.Sequential(linear, linear),
        "tied": nn.Sequential(linear, other),
    }
    model = modules[kind]
    DoReFaQuantizer(model, [{"op_types": ["default", "LSTM"], "gradient_bits": 4}]).compress()
    model(torch.randn(3, 4)).sum().backward()
    assert len(calls) == (1 if kind == "lstm" else 2)


def test_copies_keep_it_and_strip_leaves_no_hook():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    anatomy = Anatomy(torch_lab, model)
    model, quantizer = layer(bits=1, module=model)
    upstream = torch.randn(4, 5)
    x = torch.randn(4, 6)
    results = []
    for each in (model, copy.deepcopy(model)):
        torch.manual_seed(3)
        each(x).backward(upstream)
        results.append(each[0].bias.grad)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    plain = upstream * (nn.functional.linear(x, model[0].weight, model[0].bias) > 0)
    assert not torch.equal(results[0], plain.sum(0))
    quantizer.strip()
    anatomy.expect_same("after strip()")
    quantizer.compress()
    assert len(model[0]._forward_hooks) == 1
    OlderNames.reset(quantizer)
    assert len(model[0]._forward_hooks) == 1


def test_gradient_bits_alone_do_not_stand_in_the_way_of_export(tmp_path):
    model, quantizer = layer()
    quantizer.export_model(str(tmp_path / "model.pt"))
    held = torch.load(tmp_path / "model.pt")["weight"]
    assert torch.equal(held, model.weight)


def test_it_compiles():
    model, _ = layer(bits=2)
    x, upstream = torch.randn(8, 6), torch.randn(8, 5)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).backward(upstream)
    top = upstream.abs().amax(1, keepdim=True)
    assert float((model.bias.grad - upstream.sum(0)).abs().max()) < float((top / 3).sum())
    assert not torch.allclose(model.bias.grad, upstream.sum(0))


def test_the_network_of_the_paper_trains():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 1), nn.BatchNorm2d(8), nn.Hardtanh(0, 1)),
        *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2)),
    )
    bits = {"weight": 1, "input": 2}
    losses = train(
        model,
        [
            {"op_names": ["0", "7"], "exclude": True},
            {"quant_types": ["weight", "input"], "quant_bits": bits, "gradient_bits": 6},
        ],
        steps=80,
    )
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("bits", [0, 17, 33, 2.5, "4", True])
def test_gradient_bits_are_checked(bits):
    with pytest.raises(ConfigError, match="rule 0 → gradient_bits"):
        DoReFaQuantizer(nn.Linear(2, 2), [{"gradient_bits": bits}])


def test_a_layer_that_is_never_called_has_no_gradient_to_round():
    attention = nn.Sequential(nn.MultiheadAttention(4, 2))
    with pytest.raises(
        ConfigError, match=r"rule 0 → gradient_bits: layer '0.out_proj' is computed"
    ):
        DoReFaQuantizer(attention, [{"op_names": ["0.out_proj"], "gradient_bits": 4}])
