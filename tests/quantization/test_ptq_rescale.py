"""Equalization and SmoothQuant move factors between layers; what the model computes in float stays."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from lilliput.frameworks.torch.ptq.trace import in_float
from lilliput.torch import LevelPruner, PTQQuantizer

RULES = [{"op_types": ["Conv2d", "Linear"], "quant_bits": 8}]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class ConvNet(nn.Module):
    """Batch norms, a depthwise convolution, a functional ReLU, pooling, a pair without activation."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, bias=False)
        self.stem_norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.depthwise_norm = nn.BatchNorm2d(8)
        self.point = nn.Conv2d(8, 12, 1)
        self.grouped = nn.Conv2d(12, 6, 3, groups=3)
        self.last = nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = functional.relu(self.stem_norm(self.stem(x)))
        x = functional.relu_(self.depthwise_norm(self.depthwise(x)))
        x = functional.max_pool2d(functional.relu(self.point(x)), 2)
        x = self.last(self.grouped(x))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """Attention and feed-forward, norms first; outliers in some channels of the norms."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.norm1, self.norm2 = norm(16), norm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        y = self.norm1(x)
        attention = (self.q(y) @ self.k(y).transpose(1, 2) / 4).softmax(-1)
        x = x + self.out(attention @ self.v(y))
        return x + self.down(functional.relu(self.up(self.norm2(x))))


class OnePlus(nn.Module):
    """A norm that multiplies by one plus its weight; its name promises otherwise."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size) / 8)

    def forward(self, x):
        return functional.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


OnePlus.__name__ = "GemmaRMSNorm"


class PlainRMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * functional.rms_norm(x, x.shape[-1:])


def conv_net():
    torch.manual_seed(0)
    model = ConvNet()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or "norm" in name:  # channels of very different size
                shape = [-1, *[1] * (parameter.dim() - 1)]
                parameter *= torch.logspace(-1, 1, parameter.shape[0]).reshape(shape)
            if "norm.bias" in name:
                parameter += torch.randn_like(parameter)
        for _ in range(10):
            model(torch.randn(32, 3, 16, 16))
    return model.eval()


def block(norm=nn.LayerNorm):
    torch.manual_seed(0)
    model = Block(norm).eval()
    with torch.no_grad():
        for layer in (model.norm1, model.norm2):
            layer.weight[3] *= 30
    return model


def images(count=4):
    torch.manual_seed(1)
    return [torch.randn(8, 3, 16, 16) for _ in range(count)]


def sentences(count=4):
    torch.manual_seed(1)
    return [torch.randn(4, 6, 16) for _ in range(count)]


def refine(model, batches, rules=RULES, **options):
    quantizer = PTQQuantizer(model, rules, **options)
    quantizer.compress()
    quantizer.calibrate(batches)
    return quantizer


@torch.no_grad()
def in_float_of(model, x):
    with in_float(model):
        return model(x)


def expect_same_function(model, before, batches):
    wide = copy.deepcopy(before).double()
    for x in batches:
        exact = wide(x.double())
        tolerance = 2e-6 * exact.abs().max()  # a few roundings of float32
        assert (in_float_of(model, x) - exact).abs().max() < tolerance


def test_equalization_keeps_what_the_model_computes():
    model = conv_net()
    before = copy.deepcopy(model)
    refine(model, images(), equalize=True)
    expect_same_function(model, before, images())
    changed = [n for n, p in before.named_parameters() if not torch.equal(p, _raw(model, n))]
    assert "stem_norm.weight" in changed and "stem_norm.bias" in changed
    assert "stem.weight" not in changed  # its norm is rescaled instead
    assert {"depthwise.weight", "point.weight", "point.bias", "grouped.weight"} <= set(changed)
    for name, buffer in before.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer)


def test_equalized_channels_have_equal_ranges_on_both_sides():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    refine(model, [torch.randn(16, 6)], equalize=True)
    rows = _raw(model, "0.weight").abs().amax(1)
    columns = _raw(model, "2.weight").abs().amax(0)
    torch.testing.assert_close(rows, columns, rtol=1e-5, atol=0)


def test_equalized_ranges_count_the_batch_norm():
    model = conv_net()
    refine(model, images(), equalize=True)
    norm = model.stem_norm
    factor = _raw(model, "stem_norm.weight") / (norm.running_var + norm.eps).sqrt()
    rows = _raw(model, "stem.weight").abs().amax((1, 2, 3)) * factor.abs()
    after = model.depthwise_norm
    factor = _raw(model, "depthwise_norm.weight") / (after.running_var + after.eps).sqrt()
    columns = _raw(model, "depthwise.weight").abs().amax((1, 2, 3)) * factor.abs()
    torch.testing.assert_close(rows, columns, rtol=1e-2, atol=0)  # until nothing moves by 0.1 %


def test_equalization_helps_where_one_scale_serves_all_channels():
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "granularity": "per_tensor"}]
    sizes, x = torch.logspace(-1, 1, 16), torch.randn(32, 8)
    errors = []
    for equalize in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        with torch.no_grad():
            model[0].weight *= sizes[:, None]
            model[2].weight /= sizes
            wanted = model(x)
        refine(model, [x], rules, equalize=equalize)
        errors.append((model(x) - wanted).square().mean())
    assert errors[1] < errors[0] / 10


class Branches(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4, affine=False)

    def forward(self, x):
        y = self.first(x)
        if self.kind == "relu6":
            return self.second(functional.relu6(100 * y))
        if self.kind == "clamp":
            return self.second(y.clamp(min=0.5))
        if self.kind == "sigmoid":
            return self.second(y.sigmoid())
        if self.kind == "residual":
            return y + self.second(y)
        if self.kind == "returned":
            return y, self.second(y)
        if self.kind == "in a dict":
            return {"features": [y], "result": self.second(y)}
        if self.kind == "hidden":
            return type("Result", (), {"features": y, "result": self.second(y)})
        if self.kind == "twice":
            return self.second(self.second(y))
        if self.kind == "read elsewhere":
            return self.second(y) * self.first.weight.sum()
        if self.kind == "norm without weights":
            return self.second(self.norm(y))
        return self.second(y.transpose(1, 2))


KINDS = ["relu6", "clamp", "sigmoid", "residual", "returned", "in a dict", "hidden", "twice"]
KINDS += ["read elsewhere", "norm without weights", "transposed"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_equalized_where_that_would_change_the_result(kind):
    torch.manual_seed(0)
    model = Branches(kind).eval()
    before = copy.deepcopy(model)
    refine(model, [torch.randn(2, 4, 4, 4)], equalize=True)
    for name, parameter in before.named_parameters():
        assert torch.equal(parameter, _raw(model, name)), name


def mobile(clip):
    """Channels of very different size between a pointwise and a depthwise convolution."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16), clip
    model = nn.Sequential(*layers, nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 4, 1)).eval()
    with torch.no_grad():
        model[0].weight *= torch.logspace(-2, 1, 16)[:, None, None, None]
        model[1].bias.uniform_(-0.5, 0.5)
    return model


CLIPS = {
    "relu6": nn.ReLU6,
    "in place": lambda: nn.ReLU6(inplace=True),
    "other bounds": lambda: nn.Hardtanh(0, 3),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("is_placed", [False, True])
def test_channels_that_stay_clear_of_a_clip_are_equalized_and_no_others(clip, is_placed, caplog):
    model, batches = mobile(CLIPS[clip]()), images(2)
    before, limit = copy.deepcopy(model), model[2].max_val
    highest = torch.cat([before[:2](x) for x in batches]).amax((0, 2, 3)).detach()
    is_clear = highest < 0.8 * limit
    with caplog.at_level("INFO", logger="lilliput"):
        refine(model, batches, equalize=True, example_inputs=batches[0] if is_placed else None)
    expect_same_function(model, before, batches)
    factors = (_raw(model, "1.weight") / before[1].weight).detach()
    assert 0 < int(is_clear.sum()) < 16
    assert (factors[~is_clear] == 1).all() and (factors[is_clear] != 1).all()
    assert (highest * factors)[is_clear].amax() <= 0.8 * limit * 1.0001
    assert f"{int(is_clear.sum())} of their 16 channels" in caplog.text


class Standardized(nn.Conv2d):
    """A convolution that divides its weight by its deviation: scaling the weight does nothing."""

    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


@pytest.mark.parametrize("kind", ["own forward", "tied", "conv to linear", "unselected"])
def test_unusual_layers_are_left_alone(kind):
    torch.manual_seed(0)
    first, second, rules = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), RULES
    if kind == "own forward":
        first = Standardized(4, 4, 1)
    elif kind == "tied":
        second.weight = first.weight
    elif kind == "conv to linear":
        second = nn.Linear(4, 4)
    else:
        rules = [{"op_names": ["0"]}]
    model = nn.Sequential(first, nn.ReLU(), second)
    before = copy.deepcopy(model)
    refine(model, [torch.randn(2, 4, 4, 4)], rules, equalize=True)
    for name, parameter in before.named_parameters():
        assert torch.equal(parameter, _raw(model, name)), name


def test_a_norm_over_another_axis_than_the_layers_is_no_pair():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 5)).eval()
    before = copy.deepcopy(model)
    batch = torch.randn(3, 5, 5)
    refine(model, [batch], equalize=True)
    expect_same_function(model, before, [batch])


def test_pruned_channels_do_not_break_equalization():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[2] = 0
        model[2].weight[:, 5] = 0
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    zeros = {i: model[i].weight == 0 for i in (0, 2)}
    before = copy.deepcopy(model)
    refine(model, [torch.randn(16, 6)], equalize=True)
    expect_same_function(model, before, [torch.randn(16, 6)])
    for i, zero in zeros.items():
        assert (model[i].weight[zero] == 0).all()
        assert torch.equal(_raw(model, f"{i}.weight") == 0, zero)


NORMS = [nn.LayerNorm, nn.RMSNorm, PlainRMSNorm, lambda n: nn.LayerNorm(n, bias=False)]


@pytest.mark.parametrize("alpha", [0, 0.5, 1.0])
@pytest.mark.parametrize("norm", NORMS)
def test_smoothing_keeps_what_the_model_computes(norm, alpha):
    model = block(norm)
    before = copy.deepcopy(model)
    refine(model, sentences(), smooth=alpha)
    expect_same_function(model, before, sentences())
    for name in ("norm1.weight", "norm2.weight", "q.weight", "k.weight", "v.weight", "up.weight"):
        assert not torch.equal(before.get_parameter(name), _raw(model, name)), name
    for name in ("q.bias", "out.weight", "down.weight"):
        assert torch.equal(before.get_parameter(name), _raw(model, name)), name


def test_smoothing_follows_the_formula():
    model = block()
    x = sentences(1)
    largest = model.norm1(x[0]).abs().amax((0, 1))
    rows = torch.stack([layer.weight for layer in (model.q, model.k, model.v)]).abs().amax((0, 1))
    expected = model.norm1.weight / (largest**0.7 / rows**0.3)
    refine(model, x, smooth=0.7)
    torch.testing.assert_close(_raw(model, "norm1.weight"), expected.detach(), rtol=1e-5, atol=0)


def test_smoothing_tames_outliers():
    errors = []
    for alpha in (None, 0.5):
        model = block()
        wanted = in_float_of(copy.deepcopy(model), sentences()[0])
        refine(model, sentences(), [{"op_types": ["Linear"], "quant_bits": 6}], smooth=alpha)
        errors.append((model(sentences()[0]) - wanted).square().mean())
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("kind", ["one plus", "residual", "unselected reader"])
def test_nothing_is_smoothed_where_that_would_change_the_result(kind):
    model, rules = block(OnePlus if kind == "one plus" else nn.LayerNorm), RULES
    if kind == "residual":
        model = nn.Sequential(model.norm1, _Residual(model.q))
    elif kind == "unselected reader":
        rules = [{"op_names": ["q", "v", "down"]}]
    before = copy.deepcopy(model)
    refine(model, sentences(), rules, smooth=0.5)
    for name, parameter in before.named_parameters():
        assert torch.equal(parameter, _raw(model, name)), name


class _Residual(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x + self.layer(x)


def test_a_channel_that_is_always_zero_is_not_smoothed():
    model = block()
    with torch.no_grad():
        model.norm1.weight[5] = model.norm1.bias[5] = 0
        model.up.weight[:, 7] = 0
    before = copy.deepcopy(model)
    refine(model, sentences(), smooth=0.5)
    expect_same_function(model, before, sentences())
    assert (model.up.weight[:, 7] == 0).all()


def _raw(model, name):
    path, _, last = name.rpartition(".")
    return model.get_submodule(path)._parameters[last].detach()


def test_a_channel_that_is_all_but_dead_is_rescaled_within_limits():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    )
    with torch.no_grad():
        model[0].weight[1] *= 1e-9
        model[0].bias[1] = 0.3
    before = model[0].bias.detach().clone()
    quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d"]}], equalize=True)
    quantizer.compress()
    quantizer.calibrate([torch.randn(4, 3, 12, 12)])
    ratio = (model[0].bias / before).detach()
    assert ratio.abs().max() <= 100.001


@pytest.mark.parametrize(
    "options", [{"equalize": True}, {"smooth": 0.5}, {"bias_correction": True}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_strip_puts_back_parameters_of_every_precision(options, dtype):
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    quantizer = PTQQuantizer(model, [{"op_types": ["Linear"]}], **options)
    quantizer.compress()
    quantizer.calibrate([torch.randn(64, 8, dtype=dtype)])
    changed = [
        n for n, p in model.named_parameters() if n in before and not torch.equal(p, before[n])
    ]
    assert changed
    quantizer.strip()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
