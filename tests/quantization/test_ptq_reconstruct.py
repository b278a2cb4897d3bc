"""AdaRound and bias correction: closer to the float model on data, by numbers."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from lilliput.config.layer import QuantType
from lilliput.frameworks.torch.ptq.adaround import input_rows, output_rows, pick
from lilliput.frameworks.torch.ptq.trace import PlainLayer
from lilliput.torch import LevelPruner, PTQQuantizer

QUICK = {"steps": 200, "positions": 2048}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.hidden, self.head = nn.Linear(24 * 16, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.hidden(self.features(x).flatten(1)).relu())


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    x = torch.tensor(found.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], torch.tensor(found.target)[order]


@pytest.fixture(scope="module")
def trained(digits):
    torch.manual_seed(0)
    x, y = digits
    model = DigitNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(3):
        for rows in torch.randperm(1280).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def rules(bits):
    types = {"weight": bits, "input": 8}
    return [{"op_types": ["Conv2d", "Linear"], "quant_bits": types}]


def quantize(trained, digits, bits=4, config=None, **options):
    model = copy.deepcopy(trained)
    quantizer = PTQQuantizer(model, rules(bits) if config is None else config, **options)
    quantizer.compress()
    quantizer.calibrate(digits[0][:512].split(64))
    return quantizer


@torch.no_grad()
def results(quantizer, trained, digits):
    """Return accuracy and squared error of the logits on data that was not calibrated with."""
    x, y = digits[0][1280:], digits[1][1280:]
    logits = quantizer.bound_model(x)
    accuracy = (logits.argmax(1) == y).float().mean()
    return float(accuracy), float((logits - trained(x)).square().mean())


def test_adaround_is_closer_to_float_than_rounding_to_nearest(trained, digits):
    nearest = results(quantize(trained, digits, 4), trained, digits)
    rounded = results(quantize(trained, digits, 4, adaround=QUICK), trained, digits)
    assert rounded[1] < 0.7 * nearest[1]


def test_adaround_recovers_the_accuracy_that_two_bits_lose(trained, digits):
    x, y = digits[0][1280:], digits[1][1280:]
    in_float = float((trained(x).argmax(1) == y).float().mean())
    nearest = results(quantize(trained, digits, 2), trained, digits)[0]
    rounded = results(quantize(trained, digits, 2, adaround=QUICK), trained, digits)[0]
    assert nearest < in_float - 0.05
    assert rounded > in_float - (in_float - nearest) / 2


def test_no_layer_reconstructs_worse_than_by_rounding_to_nearest(trained, digits):
    """The first layer sees the same input either way, so its error can be compared directly."""
    x = digits[0][:512]
    errors = []
    for options in ({}, {"adaround": {**QUICK, "positions": 10**6}}):
        model = quantize(trained, digits, 3, **options).bound_model
        first = model.features[:3]
        errors.append((first(x) - trained.features[:3](x)).square().mean((0, 2, 3)))
    assert (errors[1] <= errors[0] * 1.0001).all()
    assert errors[1].sum() < 0.9 * errors[0].sum()


SETTINGS = [
    {},
    {"granularity": "per_tensor"},
    {"quant_scheme": {"weight": "affine"}},
    {"granularity": {"weight": "per_group"}, "group_size": 3, "op_types": ["Linear"]},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_rounded_weight_is_the_grid_point_below_or_above(trained, digits, settings):
    config = [{**rules(4)[0], **settings}]
    quantizer = quantize(trained, digits, config=config, adaround={"steps": 20})
    for wrapper in quantizer.get_modules_wrapper():
        qparams = quantizer.qparams(wrapper, QuantType.WEIGHT)
        before = trained.get_parameter(f"{wrapper.name}.weight").detach()
        seen = wrapper.module.weight.detach()
        scale = qparams.spread(qparams.scale, before)
        steps = (seen - before) / scale
        integers = qparams.to_integers(before)
        is_inside = (integers > qparams.grid.low) & (integers < qparams.grid.high)
        assert (steps[is_inside].abs() < 1 + 1e-4).all()
        again = qparams.to_reals(qparams.to_integers(seen))
        torch.testing.assert_close(again, seen, rtol=1e-6, atol=1e-7)


def test_adaround_with_scales_per_channel_stores_exact_grid_points(trained, digits):
    quantizer = quantize(trained, digits, adaround={"steps": 20})
    for wrapper in quantizer.get_modules_wrapper():
        assert torch.equal(wrapper.module.weight, wrapper.weight)  # rounding again changes nothing
        scale = wrapper.weight_scale.reshape(-1, *[1] * (wrapper.weight.dim() - 1))
        integers = (wrapper.weight / scale).round().clamp(-7, 7)
        assert torch.equal(wrapper.weight, integers * scale)


CONVOLUTIONS = [
    nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2),
    nn.Conv2d(4, 6, (3, 1), padding="same", groups=2, bias=False),
    nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", groups=4),
    nn.Conv2d(4, 4, (1, 3), padding=(0, 1), padding_mode="circular"),
    nn.Conv3d(4, 2, 2, stride=(1, 2, 1), padding=1),
    nn.Linear(5, 3),
]


@pytest.mark.parametrize("module", CONVOLUTIONS, ids=str)
def test_sampled_positions_are_what_the_layer_computes(module):
    """Rows of input times the weight are rows of output."""
    torch.manual_seed(0)
    quantizer = PTQQuantizer(module, [{"quant_types": ["weight"]}])
    (wrapper,) = quantizer.get_modules_wrapper()
    layer = PlainLayer(wrapper, "", module, None)
    dimensions = 2 if isinstance(module, nn.Linear) else len(module.kernel_size)
    for batch in ((2,), ()):  # convolutions take a single sample as well
        x = torch.randn(
            *batch, *((4,) if not isinstance(module, nn.Linear) else ()), *[5] * dimensions
        )
        output = module(x)
        picked = pick(layer, output, 7, seed=3)
        inputs, wanted = input_rows(layer, x, picked), output_rows(layer, output, picked)
        weight = module.weight.reshape(layer.groups, -1, inputs.shape[2])
        found = torch.einsum("ngi,goi->ngo", inputs, weight).flatten(1)
        found = found if module.bias is None else found + module.bias
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def means(model, x):
    """Return the mean of each channel that each convolution and linear layer puts out, norm included."""
    found, handles = {}, []
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and not name.endswith("lilliput"):
            after = model.features[int(name[9:]) + 1] if name.startswith("features") else None
            module = after if isinstance(after, nn.BatchNorm2d) else module
            axes = (0, 2, 3) if name.startswith("features") else 0
            hook = lambda m, i, o, name=name, axes=axes: found.update({name: o.mean(axes)})  # noqa: E731
            handles.append(module.register_forward_hook(hook, prepend=True))
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


def test_bias_correction_makes_the_means_of_channels_equal(trained, digits):
    config = [{**rules(3)[0], "quant_types": ["weight", "input"]}]
    wanted = means(trained, digits[0][:512])
    off = means(quantize(trained, digits, config=config).bound_model, digits[0][:512])
    found = means(
        quantize(trained, digits, config=config, bias_correction=True).bound_model, digits[0][:512]
    )
    for name, mean in wanted.items():
        assert (off[name] - mean).abs().max() > 1e-2
        assert (found[name] - mean).abs().max() < 1e-5 * max(1, float(mean.abs().max()))


def test_the_quick_correction_is_the_same_where_there_is_one_batch(trained, digits):
    found = []
    for option in (True, "quick"):
        quantizer = PTQQuantizer(
            copy.deepcopy(trained), rules(3), weights="mse", bias_correction=option
        )
        model = quantizer.compress()
        quantizer.calibrate([digits[0][:256]])
        with torch.no_grad():
            found.append(model(digits[0][:64]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


class Padding(nn.Conv2d):
    """A convolution that pads its input by itself."""

    def forward(self, x):
        return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))


@pytest.mark.parametrize("option", [True, "quick"])
def test_the_norm_after_a_layer_that_does_more_is_corrected(option):
    torch.manual_seed(0)
    model = nn.Sequential(Padding(2, 4, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU()).eval()
    x, before = torch.rand(32, 2, 6, 6), model[1].bias.detach().clone()
    with torch.no_grad():
        wanted = model[:2](x).mean((0, 2, 3))
    quantizer = PTQQuantizer(
        model,
        [{"quant_bits": 2, "quant_types": ["weight"]}],
        example_inputs=x,
        bias_correction=option,
    )
    quantizer.compress()
    quantizer.calibrate([x])
    assert not torch.equal(model[1].bias, before)
    with torch.no_grad():
        torch.testing.assert_close(model[:2](x).mean((0, 2, 3)), wanted, rtol=1e-4, atol=1e-5)


def test_bias_correction_helps_and_costs_nothing_in_shape(trained, digits):
    plain = results(quantize(trained, digits, 3), trained, digits)
    corrected = results(quantize(trained, digits, 3, bias_correction=True), trained, digits)
    assert corrected[1] < 0.7 * plain[1]


def test_a_layer_without_bias_and_norm_is_left_out_and_named(caplog):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))
    before = model[0].weight.clone()
    quantizer = PTQQuantizer(model, [{"quant_bits": 3}], bias_correction=True)
    quantizer.compress()
    with caplog.at_level("INFO", logger="lilliput"):
        quantizer.calibrate([torch.randn(32, 4)])
    assert "without a bias" in caplog.text and "['0']" in caplog.text
    assert torch.equal(quantizer.get_modules_wrapper()[0].weight, before)


class Unusual(nn.Module):
    """A transposed convolution, a layer called twice, a tied one, one called by keyword."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 4, 3, groups=2)
        self.twice = nn.Conv2d(4, 4, 1)
        self.one, self.other = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.other.weight = self.one.weight
        self.last = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        x = self.twice(self.twice(self.up(x)).relu())
        return self.last(input=self.other(self.one(x).relu()))


def test_unusual_layers_round_to_nearest_and_are_corrected_where_possible():
    torch.manual_seed(0)
    model = Unusual().eval()
    before = copy.deepcopy(model)
    batches = [torch.randn(4, 2, 5, 5) for _ in range(3)]
    quantizer = PTQQuantizer(
        model,
        [{"quant_bits": 4, "quant_types": ["weight", "input"]}],
        adaround={"steps": 20},
        bias_correction=True,
        equalize=True,
    )
    quantizer.compress()
    quantizer.calibrate(batches)
    x = torch.cat(batches)
    with torch.no_grad():
        wanted, found = before(x), model(x)
    assert (wanted.mean((0, 2, 3)) - found.mean((0, 2, 3))).abs().max() < 1e-4
    quantizer.strip()
    for name, parameter in before.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))


def test_pruned_weights_stay_zero_through_everything(trained, digits):
    model = copy.deepcopy(trained)
    LevelPruner(model, [{"op_types": ["Conv2d", "Linear"], "sparsity": 0.6}]).compress()
    zeros = {
        n: m.weight == 0 for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))
    }
    quantizer = PTQQuantizer(
        model, rules(4), weights="mse", equalize=True, adaround={"steps": 50}, bias_correction=True
    )
    quantizer.compress()
    quantizer.calibrate(digits[0][:128].split(64))
    for name, zero in zeros.items():
        assert (model.get_submodule(name).weight[zero] == 0).all()
        assert zero.sum() > 0


def test_float_targets_do_not_move_while_layers_are_rounded(trained, digits):
    """With very many bits everything is exact, and nothing drifts."""
    quantizer = quantize(
        trained,
        digits,
        config=[{**rules(16)[0], "quant_bits": 16}],
        adaround={"steps": 5},
        bias_correction=True,
    )
    x = digits[0][:64]
    assert (quantizer.bound_model(x) - trained(x)).abs().max() < 1e-2


def test_the_random_numbers_of_the_user_are_left_alone(trained, digits):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quantize(trained, digits, adaround={"steps": 3}, smooth=0.5, equalize=True)
    assert torch.equal(torch.rand(3), expected)
