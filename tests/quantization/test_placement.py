"""Where activations are quantized in small networks, each built to be difficult in one way."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lilliput.compat.nni.classes.older_names import OlderNames
from lilliput.frameworks.torch import lab as torch_lab
from lilliput.frameworks.wrapping import marking
from lilliput.testing.observe import Anatomy
from lilliput.torch import LSQQuantizer, QATQuantizer, QuantType


class Residual(nn.Module):
    """A residual block between a stem and a head; ``kind`` says what becomes of its ReLUs."""

    def __init__(self, kind="modules"):
        super().__init__()
        self.stem, self.bn0, self.relu0 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.bn1, self.relu1 = nn.BatchNorm2d(4), nn.ReLU(inplace=kind == "inplace")
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu2, self.head = nn.ReLU(), nn.Linear(4, 3)
        self.kind = kind
        if kind == "shared":
            self.relu1 = self.relu2 = self.relu0

    def activate(self, relu, x):
        return nn.functional.relu(x) if self.kind == "functional" else relu(x)

    def forward(self, x):
        x = self.activate(self.relu0, self.bn0(self.stem(x)))
        y = self.activate(self.relu1, self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.kind == "inplace":
            y += x
        else:
            y = x + y
        return self.head(self.activate(self.relu2, y).mean((2, 3)))


class LastRelu(nn.Module):
    """Ends in a convolution, a norm, a ReLU without a module, and a mean."""

    def __init__(self):
        super().__init__()
        self.last, self.norm = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        x = self.last(self.conv(x))
        return nn.functional.relu(self.norm(x), inplace=True).mean((2, 3))


class Branches(nn.Module):
    """Two layers and an addition read what a function clips."""

    def __init__(self, clip):
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.clip = clip

    def forward(self, x):
        x = self.clip(self.stem(x))
        return (self.a(x) + self.b(x) + x).mean((2, 3))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.relu, self.pool = nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.MaxPool2d(2)
        self.conv2, self.fc = nn.Conv2d(4, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.conv2(self.pool(self.relu(self.conv1(x)))).flatten(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        x = self.norm(x)
        return self.out((self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x))


class PostNorm(nn.Module):
    """An encoder layer whose norms come after the additions."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm1 = Attention(), nn.LayerNorm(6)
        self.up, self.act, self.down = nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)
        self.norm2, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.head(self.norm2(x + self.down(self.act(self.up(x)))).mean(1))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()
        self.last = nn.Conv2d(3, 2, 1)

    def forward(self, x):
        return self.last(self.relu(self.conv(self.relu(self.conv(x)))))


class NoStatistics(nn.Module):
    """Norms that cannot be folded into the layer before them."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)
        self.relu, self.conv2 = nn.ReLU(), nn.Conv2d(4, 4, 3)
        self.norm2 = nn.InstanceNorm2d(4)

    def forward(self, x):
        return self.norm2(self.conv2(self.relu(self.norm(self.conv(x)))))


def images():
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def sequences():
    return torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))


# Which layer's tensor is quantized at the output of which module; '' at the layer itself.
RESIDUAL = {
    ("stem", "input"): "",
    ("stem", "output"): "relu0",
    ("conv1", "output"): "relu1",
    ("conv2", "output"): "bn2",
    ("head", "input"): "",
}
FUNCTIONAL = {
    ("stem", "input"): "",
    ("stem", "output"): "bn0",
    ("conv2", "input"): "",
    ("conv2", "output"): "bn2",
    ("head", "input"): "",
}
NETWORKS = {
    "residual": (Residual, images, RESIDUAL),
    "residual in place": (lambda: Residual("inplace"), images, RESIDUAL),
    "shared relu": (lambda: Residual("shared"), images, FUNCTIONAL),
    "functional relu": (lambda: Residual("functional"), images, FUNCTIONAL),
    "last relu": (
        LastRelu,
        images,
        {("conv", "input"): "", ("conv", "output"): "", ("last", "output"): "norm"},
    ),
    "functional relu6": (
        lambda: Branches(nn.functional.relu6),
        images,
        {("stem", "input"): "", ("stem", "output"): "", ("a", "output"): "", ("b", "output"): ""},
    ),
    "max pooling": (
        Pooled,
        images,
        {("conv1", "input"): "", ("conv1", "output"): "relu", ("conv2", "output"): ""},
    ),
    "two readers": (Attention, sequences, {("q", "input"): "norm", ("out", "input"): ""}),
    "post-norm encoder": (
        PostNorm,
        sequences,
        {
            ("attention.q", "input"): "attention.norm",
            ("attention.out", "input"): "",
            ("up", "input"): "",
            ("down", "input"): "",
            ("head", "input"): "",
        },
    ),
    "called twice": (
        Twice,
        images,
        {(x, y): "" for x in ("conv", "last") for y in ("input", "output")},
    ),
    "norms without statistics": (
        NoStatistics,
        images,
        {(x, y): "" for x in ("conv", "conv2") for y in ("input", "output")},
    ),
}
cases = pytest.mark.parametrize("name", NETWORKS)


def build(name, quantizer=QATQuantizer, is_trained=True, **settings):
    make, inputs, _ = NETWORKS[name]
    torch.manual_seed(0)
    model, x = make(), inputs()
    made = quantizer(model, [settings] if settings else None, example_inputs=x)
    made.compress()
    if is_trained:
        model.train()(x)
    return model.eval(), made, x


def is_on_grid(tensor, held):
    return torch.allclose(held.to_reals(held.to_integers(tensor)), tensor, rtol=1e-5, atol=1e-6)


@cases
def test_each_tensor_is_quantized_once_where_runtimes_look_for_it(name):
    _, quantizer, _ = build(name)
    found = {}
    for wrapper in quantizer.get_modules_wrapper():
        for target in set(wrapper.roles) - {"weight"}:
            spot = wrapper.places.get(target, {"module": "", "by": None})
            if spot["by"] is None:
                found[wrapper.name, target] = spot["module"]
    assert found == NETWORKS[name][2]


@cases
def test_it_happens_just_there_in_forward(name):
    model, quantizer, x = build(name)
    calls = []

    def record(wrapper, quant_type, tensors):
        if quant_type is not QuantType.WEIGHT:
            calls.append((wrapper.name, quant_type.value))
        return wrapper._quantizer().run(wrapper, quant_type, tensors)

    with marking(record, quantizer.get_modules_wrapper()), torch.no_grad():
        model(x)
    expected = dict.fromkeys(NETWORKS[name][2], 1)
    if name == "called twice":
        expected |= {("conv", "input"): 2, ("conv", "output"): 2}
    assert {call: calls.count(call) for call in calls} == expected
    assert len(quantizer.get_modules_wrapper()) > 1


@cases
def test_every_layer_reads_what_its_qparams_say(name):
    model, quantizer, x = build(name)
    checked = []
    for wrapper in quantizer.get_modules_wrapper():
        if "input" in wrapper.roles:

            def look(module, args, wrapper=wrapper):
                held = quantizer.qparams(wrapper, QuantType.INPUT)
                checked.append((wrapper.name, is_on_grid(args[0], held)))

            wrapper.module.register_forward_pre_hook(look)
    with torch.no_grad():
        model(x)
    assert len({name for name, _ in checked}) == len(quantizer.get_modules_wrapper())
    assert all(fine for _, fine in checked), checked


@pytest.mark.parametrize("name", ["residual", "residual in place", "max pooling"])
def test_what_comes_after_norm_and_relu_lies_on_the_grid_of_the_layer(name):
    model, quantizer, x = build(name)
    wrappers = {wrapper.name: wrapper for wrapper in quantizer.get_modules_wrapper()}
    checked = []
    for (layer, target), path in NETWORKS[name][2].items():
        if path:
            held = quantizer.qparams(wrappers[layer], QuantType(target))

            def look(module, args, output, held=held):
                checked.append(is_on_grid(output, held))

            model.get_submodule(path).register_forward_hook(look)
            if "relu" in path:
                assert float(held.zero_point) == 0
    with torch.no_grad():
        model(x)
    assert checked and all(checked)


class Clips(TorchDispatchMode):
    """Keeps what ReLUs return."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0].rstrip("_")
        if name in ("relu", "hardtanh") and output.ndim == 4:
            self.seen.append(output.clone())
        return output


@pytest.mark.parametrize(
    "name", ["functional relu", "shared relu", "last relu", "functional relu6"]
)
@pytest.mark.parametrize("quantizer", [QATQuantizer, LSQQuantizer])
def test_clips_without_a_module_of_their_own_return_what_lies_on_the_grid_of_the_layer(
    name, quantizer
):
    """And no integer of that grid is spent on what the clip cuts off."""
    model, made, x = build(name, quantizer)
    wrapper, is_open = made.get_modules_wrapper()[0], "relu6" not in name
    if quantizer is LSQQuantizer and not is_open:
        assert wrapper._clip is None, "a learned grid may reach beyond six"
        return
    held, clips = made.qparams(wrapper, QuantType.OUTPUT), Clips()  # of images, not of scales
    with torch.no_grad(), clips:
        model(x)
    ours, theirs = clips.seen[:2] if is_open else (None, clips.seen[0])
    assert float(held.zero_point) == 0 and float(theirs.max()) > 0
    assert is_on_grid(theirs, held) and not (is_open and is_on_grid(ours, held))


@cases
def test_the_network_still_computes_about_the_same_and_trains(name):
    model, quantizer, x = build(name)
    torch.manual_seed(0)
    plain = NETWORKS[name][0]()
    plain.train()(x)  # running statistics have moved by one batch there as well
    with torch.no_grad():
        expected, output = plain.eval()(x), model(x)
    assert float((output - expected).norm() / expected.norm()) < 0.1
    model.train()(x).square().sum().backward()
    for wrapper in quantizer.get_modules_wrapper():
        assert bool(wrapper.weight.grad.isfinite().all()) and bool(wrapper.weight.grad.any())


@cases
@pytest.mark.parametrize("quantizer", [QATQuantizer, LSQQuantizer])
def test_strip_leaves_no_hook_anywhere_and_compress_brings_them_back(name, quantizer):
    make, inputs, _ = NETWORKS[name]
    torch.manual_seed(0)
    model, x = make(), inputs()
    anatomy = Anatomy(torch_lab, model)
    made = quantizer(model, None, example_inputs=x)
    for _ in range(2):
        made.compress()
        model.train()(x)
        expected = model.eval()(x).detach()
        made.strip()
        anatomy.expect_same("after strip()", values=False)
        assert not torch.equal(model(x), expected)
    made.compress()
    assert torch.equal(model(x), expected)
    OlderNames.reset(made)
    assert {hook for m in model.modules() for hook in m._forward_hooks.values()}, "reset() too"
    model.train()(x)


@cases
def test_a_copy_computes_the_same_and_lives_on_its_own(name):
    model, _, x = build(name)
    twin = copy.deepcopy(model)
    expected = model(x).detach()
    assert torch.equal(twin(x), expected)
    twin.train()(x**3 * 5)
    twin.eval()
    assert not torch.equal(twin(x), expected), "its ranges have moved"
    assert torch.equal(model(x), expected), "those of the original have not"


@cases
def test_ranges_come_along_with_the_state_dict(name):
    model, quantizer, x = build(name)
    other, second, _ = build(name, is_trained=False)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    for one, two in zip(quantizer.get_modules_wrapper(), second.get_modules_wrapper(), strict=True):
        for target in set(one.roles) - {"weight"}:
            kind = QuantType(target)
            assert quantizer.qparams(one, kind).scale == second.qparams(two, kind).scale


@cases
def test_places_come_along_with_the_state(name, tmp_path):
    model, quantizer, x = build(name)
    quantizer.state().save(tmp_path / "state")
    torch.manual_seed(0)
    other = NETWORKS[name][0]()
    second = QATQuantizer(other, None)  # without example inputs
    second.compress()
    state = {key: value for key, value in model.state_dict().items() if "lilliput" not in key}
    other.load_state_dict(state, strict=False)
    second.load_state(tmp_path / "state")
    assert torch.equal(other.eval()(x), model(x))


@pytest.mark.parametrize("name", ["max pooling"])
def test_it_compiles_in_eval_and_in_training(name):
    torch._dynamo.reset()
    model, _, x = build(name)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    twin = copy.deepcopy(model).train()
    model.train()
    torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize("name", ["residual", "post-norm encoder"])
def test_a_learned_scale_is_there_for_each_place_and_for_nothing_else(name):
    """A parameter without gradient stops DistributedDataParallel."""
    model, quantizer, x = build(name, LSQQuantizer)
    model.train()(x).square().sum().backward()
    own = {
        (wrapper.name, key.removesuffix("_scale")): parameter
        for wrapper in quantizer.get_modules_wrapper()
        for key, parameter in wrapper.named_parameters()
    }
    assert all(parameter.grad is not None for parameter in own.values())
    assert {key for key in own if key[1] != "weight"} == set(NETWORKS[name][2])


def test_without_example_inputs_everything_happens_at_the_layers():
    torch.manual_seed(0)
    model = Residual()
    quantizer = QATQuantizer(model, None)
    quantizer.compress()
    assert all(wrapper.places == {} for wrapper in quantizer.get_modules_wrapper())
    assert not model.relu0._forward_hooks and not model.bn2._forward_hooks


def test_recording_the_flow_leaves_the_model_alone():
    torch.manual_seed(0)
    model = Residual().train()
    anatomy = Anatomy(torch_lab, model)
    quantizer = QATQuantizer(model, None, example_inputs=images())
    quantizer._prepare()
    anatomy.expect_same("after the flow was recorded")
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("kind", ["modules", "functional"])
def test_layers_of_different_bits_do_not_share_a_grid(kind):
    torch.manual_seed(0)
    model, x = Residual(kind).eval(), torch.randn(2, 3, 8, 8)
    rules = [
        {"op_types": ["Conv2d", "Linear"], "quant_bits": 4},
        {"op_names": ["stem"], "quant_bits": 8},
    ]
    quantizer = QATQuantizer(model, rules, example_inputs=x)
    quantizer.compress()
    model.train()
    model(x)
    model.eval()
    levels = {}

    def look(wrapper, kind, tensors):
        results = wrapper.compressor.run(wrapper, kind, tensors)
        if kind is QuantType.INPUT:
            levels[wrapper.name] = len(results[0].unique())
        return results

    with marking(look, quantizer.get_modules_wrapper()):
        model(x)
    assert levels["conv1"] <= 16 < levels["stem"]
    wrappers = {wrapper.name: wrapper for wrapper in quantizer.get_modules_wrapper()}
    assert quantizer.qparams(wrappers["conv1"], QuantType.INPUT).grid.bits == 4
    assert quantizer.qparams(wrappers["stem"], QuantType.OUTPUT).grid.bits == 8
