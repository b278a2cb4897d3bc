"""PTQQuantizer: its options, what it refuses, and that it leaves the model as it found it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from lilliput.errors import AlgorithmError, ConfigError, StageError, UnsupportedModelError
from lilliput.ops.fakequant import covering, fake_quantize
from lilliput.testing import check_quantizer
from lilliput.torch import CompressionState, PTQQuantizer, QuantType

EVERYTHING = {
    "weights": "mse",
    "equalize": True,
    "smooth": 0.5,
    "adaround": {"steps": 20, "positions": 512},
    "bias_correction": True,
}
RULES = [{"op_types": ["Conv2d", "Linear"], "quant_bits": 4}]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, groups=8)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = functional.relu(self.norm1(self.conv1(x)))
        x = functional.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        x = self.embed(x.mean(-1).transpose(1, 2))
        y = self.norm1(x)
        attention = (self.q(y) @ self.k(y).transpose(1, 2) / 4).softmax(-1)
        x = x + self.out(attention @ self.v(y))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


MODELS = [ConvNet, Transformer]


def make(kind):
    torch.manual_seed(0)
    model = kind()
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(16, 3, 8, 8))
    return model.eval()


def batches(count=3):
    torch.manual_seed(1)
    return [torch.randn(8, 3, 8, 8) for _ in range(count)]


def refine(model, data=None, rules=RULES, **options):
    quantizer = PTQQuantizer(model, rules, **options)
    quantizer.compress()
    quantizer.calibrate(batches() if data is None else data)
    return quantizer


@pytest.mark.parametrize("kind", MODELS)
def test_every_option_together_is_closer_to_float_than_none(kind):
    x = torch.cat(batches())
    errors = []
    for options in ({}, EVERYTHING):
        model = make(kind)
        wanted = model(x)
        refine(model, **options)
        errors.append((model(x) - wanted).square().mean())
    assert errors[1] < errors[0]


@pytest.mark.parametrize("kind", MODELS)
def test_strip_restores_the_model_bit_for_bit(kind):
    model = make(kind)
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    expected = model(batches()[0])
    quantizer = refine(model, **EVERYTHING)
    assert not torch.equal(model(batches()[0]), expected)
    assert quantizer.strip() is model
    assert dict(model.named_parameters()).keys() == before.keys()
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])
        assert parameter.requires_grad and parameter.grad is None
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert torch.equal(model(batches()[0]), expected)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("first", ["model", "quantizer"])
def test_state_dict_and_state_together_give_the_same_outputs(kind, first, tmp_path):
    quantizer = refine(make(kind), **EVERYTHING)
    expected = quantizer.bound_model(batches()[0])
    quantizer.state().save(tmp_path / "state")
    torch.save(quantizer.bound_model.state_dict(), tmp_path / "model.pt")

    torch.manual_seed(9)
    fresh = kind().eval()
    loaded = PTQQuantizer(fresh, RULES, **EVERYTHING)
    loaded.compress()
    steps = [
        lambda: fresh.load_state_dict(torch.load(tmp_path / "model.pt")),
        lambda: loaded.load_state(CompressionState.load(tmp_path / "state")),
    ]
    for step in steps if first == "model" else reversed(steps):
        step()
    assert torch.equal(fresh(batches()[0]), expected)


def test_calibrating_again_starts_from_the_original():
    model = make(ConvNet)
    quantizer = refine(model, **EVERYTHING)
    expected = model(batches()[0])
    quantizer.calibrate(batches())
    assert torch.equal(model(batches()[0]), expected)


def test_after_strip_the_ranges_of_the_changed_model_are_forgotten():
    model = make(ConvNet)
    expected = model(batches()[0])
    quantizer = refine(model, **EVERYTHING)
    quantizer.strip()
    quantizer.compress()
    with pytest.raises(StageError, match="calibrate"):
        quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType.INPUT)
    quantizer.calibrate(batches())
    assert not torch.equal(model(batches()[0]), expected)
    quantizer.strip()
    assert torch.equal(model(batches()[0]), expected)


def test_what_was_trained_after_calibration_is_not_thrown_away(caplog):
    model = make(ConvNet)
    quantizer = refine(model, **EVERYTHING)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batches()[0]).square().mean().backward()
    optimizer.step()
    trained = {name: p.detach().clone() for name, p in model.named_parameters()}
    quantizer.strip()
    assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())
    assert "trained or loaded after calibrate()" in caplog.text


@pytest.mark.parametrize("step", ["equalize", "smooth", "round", "correct_biases", "note_means"])
def test_a_failure_leaves_the_model_as_it_was(step, monkeypatch):
    from lilliput.frameworks.torch.ptq import Refinement

    model = make(ConvNet)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    quantizer = PTQQuantizer(model, RULES, **EVERYTHING)
    quantizer.compress()

    def fail(self, *args, **options):
        original(self, *args, **options)
        raise KeyboardInterrupt

    original = getattr(Refinement, step)
    monkeypatch.setattr(Refinement, step, fail)
    with pytest.raises(KeyboardInterrupt):
        quantizer.calibrate(batches())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    with pytest.raises(StageError, match="calibrate"):
        quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType.INPUT)
    quantizer.strip()
    assert not any(module._forward_hooks for module in model.modules())


def test_batches_may_come_only_once_and_as_loaders_give_them():
    model, other = make(ConvNet), make(ConvNet)
    refine(model, **EVERYTHING)
    refine(other, ((x, torch.zeros(8)) for x in batches()), **EVERYTHING)
    assert torch.equal(model(batches()[0]), other(batches()[0]))


def test_few_batches_are_kept_and_all_are_calibrated_with():
    class Loader:
        read = 0

        def __iter__(self):
            self.read += 1
            return iter([*batches(3), 100 * batches(1)[0]])

    loader, model = Loader(), make(ConvNet)
    quantizer = PTQQuantizer(model, [{"op_names": ["conv1"], "observer": "minmax"}], equalize=True)
    quantizer.compress()
    quantizer.calibrate(loader)
    assert loader.read == 2
    assert quantizer.get_modules_wrapper()[0].input_high > 100
    kept, rest = quantizer._keep(torch.randn(300, 1, 3) for _ in range(30))
    assert len(kept) == 4
    assert sum(1 for _ in rest) == 30
    kept, _ = quantizer._keep([{"ids": torch.zeros(512, 2)}] * 7)
    assert len(kept) == 2


def test_a_forward_of_the_users_own_is_used():
    model, seen = make(ConvNet), []

    def forward(model, batch):
        seen.append(batch["image"].shape)
        return model(batch["image"])

    quantizer = PTQQuantizer(model, RULES, **EVERYTHING)
    quantizer.compress()
    quantizer.calibrate([{"image": x} for x in batches()], forward)
    assert len(seen) > 10


def test_calibration_leaves_modes_gradients_and_hooks_alone():
    model = make(ConvNet).train()
    model.norm1.eval()
    quantizer = PTQQuantizer(model, RULES, **EVERYTHING)
    quantizer.compress()
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    model(batches()[0]).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    statistics = model.norm2.running_mean.clone()
    quantizer.example_inputs = None
    quantizer.calibrate(batches())
    assert model.training and not model.norm1.training and model.norm2.training
    assert torch.equal(model.norm2.running_mean, statistics)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    quantizer.strip()
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0
    assert hooks


def test_half_precision_models_can_be_refined():
    model = make(Transformer).bfloat16()
    before = copy.deepcopy(model.state_dict())
    quantizer = refine(model, [x.bfloat16() for x in batches()], **EVERYTHING)
    assert model(batches()[0].bfloat16()).isfinite().all()
    quantizer.strip()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_layers_behind_a_fused_kernel_are_found():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True).eval()
    before = copy.deepcopy(model)
    data = [torch.randn(8, 6, 16) for _ in range(2)]
    rules = [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 3}]
    quantizer = refine(model, data, rules, **EVERYTHING)
    rounded = {wrapper.name: wrapper.weight for wrapper in quantizer.get_modules_wrapper()}
    assert torch.equal(model.linear1.weight, rounded["linear1"])  # on its grid already
    assert not torch.equal(model.norm2.weight, before.norm2.weight)
    assert not torch.equal(model.linear2.bias, before.linear2.bias)
    assert torch.backends.mha.get_fastpath_enabled()


# -- scales of weights -------------------------------------------------------------------------------


def test_mse_weights_are_fixed_and_known_to_exporters():
    model = make(ConvNet)
    quantizer = refine(model, weights="mse")
    for wrapper in quantizer.get_modules_wrapper():
        qparams = quantizer.qparams(wrapper, QuantType.WEIGHT)
        assert wrapper.weight_is_fixed and torch.equal(qparams.scale, wrapper.weight_scale)
        assert torch.equal(fake_quantize(wrapper.weight, qparams), wrapper.module.weight)
        covered = covering(wrapper.weight, qparams.grid)
        plain = (fake_quantize(wrapper.weight, covered) - wrapper.weight).flatten(1)
        best = (wrapper.module.weight - wrapper.weight).flatten(1)
        assert (best.square().sum(1) <= plain.square().sum(1) * (1 + 1e-6)).all()


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": "kl"}, "weights: received 'kl', expected 'minmax' or 'mse'"),
        ({"equalize": 1}, "equalize: received 1, expected True or False"),
        ({"bias_correction": "yes"}, "bias_correction: received 'yes'"),
        ({"smooth": 1.5}, "smooth: received 1.5, expected a number from 0 to 1"),
        ({"smooth": -0.1}, "smooth: received -0.1"),
        ({"smooth": True}, "smooth: received True"),
        ({"smooth": float("nan")}, "smooth: received nan"),
        ({"adaround": 3}, "adaround: received 3, expected True, False or a dict"),
        ({"adaround": {"step": 3}}, "Did you mean 'steps'"),
        ({"adaround": {"steps": 0}}, "steps received 0, expected a whole number from 1"),
        ({"adaround": {"steps": 1.5}}, "steps received 1.5"),
        ({"adaround": {"warm_up": 2}}, "warm_up received 2, expected a number from 0 to 1"),
        ({"adaround": {"learning_rate": "fast"}}, "learning_rate received 'fast'"),
    ],
)
def test_bad_options_are_refused_at_once(options, text):
    with pytest.raises(ConfigError) as caught:
        PTQQuantizer(nn.Linear(2, 2), [{}], **options)
    assert text in str(caught.value)


@pytest.mark.parametrize("options", [{"adaround": True}, {"weights": "mse"}])
def test_options_for_weights_need_a_rule_with_weights(options):
    with pytest.raises(ConfigError, match="no rule quantizes a weight"):
        PTQQuantizer(nn.Linear(2, 2), [{"quant_types": ["input"]}], **options)


def test_no_batches_and_no_compress_are_said():
    quantizer = PTQQuantizer(nn.Linear(2, 2), [{}], bias_correction=True)
    with pytest.raises(StageError, match="before compress"):
        quantizer.calibrate([torch.randn(2, 2)])
    quantizer.compress()
    with pytest.raises(ConfigError, match="no batches"):
        quantizer.calibrate(iter([]))


def test_nan_in_calibration_is_refused_and_nothing_is_changed():
    model = make(ConvNet)
    before = copy.deepcopy(model.state_dict())
    quantizer = PTQQuantizer(model, RULES, **EVERYTHING)
    quantizer.compress()
    with pytest.raises(AlgorithmError, match="NaN"):
        quantizer.calibrate([*batches(), batches(1)[0] * float("nan")])
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())


def test_the_name_of_nni_means_the_same():
    assert PTQQuantizer(nn.Linear(2, 2), [{}], is_bias_correction=True).bias_correction
    assert not PTQQuantizer(nn.Linear(2, 2), [{}]).bias_correction


def test_an_interrupted_calibration_goes_on_with_refinements(tmp_path):
    model, other = make(ConvNet), make(ConvNet)
    refine(model, **EVERYTHING)
    quantizer = PTQQuantizer(other, RULES, **EVERYTHING)
    quantizer.compress()
    with pytest.raises(ZeroDivisionError):
        quantizer.calibrate(Interrupted(), checkpoint=tmp_path / "seen.json")
    quantizer.calibrate(batches(), checkpoint=tmp_path / "seen.json")
    assert torch.equal(model(batches()[0]), other(batches()[0]))


class Interrupted:
    """Gives all batches once, and breaks off the second time."""

    count = 0

    def __iter__(self):
        self.count += 1
        yield from batches(2)
        if self.count > 1:
            raise ZeroDivisionError
        yield batches(3)[2]


@pytest.mark.slow
def test_the_battery_passes_with_every_option():
    def make_quantizer(model, rules, optimizer):
        return PTQQuantizer(model, rules, optimizer, **EVERYTHING)

    check_quantizer(PTQQuantizer, make=make_quantizer, skip=["compile", "export"])


def weights_only(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    rules = [{"quant_types": ["weight"], "quant_bits": 4, "granularity": "per_tensor"}]
    quantizer = PTQQuantizer(model, rules, **options)
    quantizer.compress()
    return model, quantizer


def test_the_best_scales_of_weights_need_no_calibration():
    x = torch.randn(64, 32)
    model, quantizer = weights_only(weights="mse")
    found = model(x)
    plain, _ = weights_only()
    assert not torch.equal(found, plain(x))
    held = [quantizer.qparams(w, QuantType.WEIGHT).scale for w in quantizer.get_modules_wrapper()]
    quantizer.calibrate([x])
    again = [quantizer.qparams(w, QuantType.WEIGHT).scale for w in quantizer.get_modules_wrapper()]
    assert all(torch.equal(a, b) for a, b in zip(held, again, strict=True))
    torch.testing.assert_close(model(x), found)


@pytest.mark.parametrize(
    "options",
    [{"equalize": True}, {"smooth": 0.5}, {"adaround": True}, {"bias_correction": True}],
)
def test_options_that_need_data_are_not_forgotten_without_calibration(options):
    _, quantizer = weights_only(**options)
    (name,) = options
    with pytest.raises(
        StageError, match=rf"{name} was requested, which calibrate\(batches\) performs"
    ):
        quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType.WEIGHT)


def test_options_refuse_weights_whose_entries_share_memory():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight = nn.Parameter(torch.randn(1, 8).expand(8, 8))
    before = model[2].weight.detach().clone()
    quantizer = PTQQuantizer(model, None, equalize=True)
    quantizer.compress()
    with pytest.raises(UnsupportedModelError, match=r"layer '0' \(Linear\) has an expanded weight"):
        quantizer.calibrate([torch.randn(64, 8)])
    quantizer.strip()
    assert torch.equal(model[2].weight, before)
