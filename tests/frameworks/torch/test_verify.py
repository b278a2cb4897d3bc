"""The masked and the cut model are compared in double precision, and with noise on their weights."""

import copy
import types

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.torch import build, verify
from lilliput.frameworks.torch.cutting import clear_, cut_all
from lilliput.frameworks.torch.perturb import Noise
from lilliput.frameworks.torch.precision import keep, load_in_parts, run_contiguous
from lilliput.frameworks.torch.trials import Trials
from lilliput.frameworks.torch.verify import make_references
from lilliput.graph.cuts import Cut
from lilliput.torch import L1NormPruner, speedup

RULES = [{"op_types": ["default"], "sparsity": 0.5}]


def pruned(*layers):
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 6)
    L1NormPruner(model, RULES, example_inputs=x).compress()
    return model, x


def test_noise_of_a_cut_weight_is_what_is_left_of_the_noise_of_the_masked_one():
    model = nn.Sequential(nn.Linear(900, 700), nn.Conv2d(8, 12, 3, groups=2), nn.BatchNorm1d(5))
    rng = np.random.default_rng(0)
    cuts = [
        Cut("0.weight", 0, rng.permutation(700)[:300]),
        Cut("0.weight", 1, np.sort(rng.permutation(900)[:500])),
        Cut("0.bias", 0, np.arange(0, 700, 3)),
        Cut("1.weight", 1, np.array([[0, 2], [1, 3]])),
        Cut("1.weight", 0, np.arange(1, 12, 2)),
    ]
    noise = Noise(model, cuts)
    for name, parameter in model.named_parameters():
        own = [cut for cut in cuts if cut.tensor == name]
        whole = noise.add(name, parameter.detach().double())
        assert not torch.equal(whole, parameter.detach().double())
        received = noise.add_cut(name, cut_all(parameter.detach().double(), own))
        torch.testing.assert_close(received, cut_all(whole, own), rtol=1e-14, atol=1e-15)
        cleared = parameter.detach().double()
        for cut in own:
            clear_(cut, cleared)
        gone = (cleared == 0) & (parameter != 0)
        assert torch.equal(whole[gone], parameter[gone].double())  # as it was, even if not zero


def test_noise_of_rows_is_that_of_the_weight():
    model = nn.Sequential(nn.Linear(900, 700))
    cuts = [Cut("0.weight", 0, np.arange(0, 700, 2)), Cut("0.weight", 1, np.arange(450))]
    noise = Noise(model, cuts)
    weight = model[0].weight.detach()
    small = cut_all(weight, cuts)
    for add, values in ((noise.add, weight), (noise.add_cut, small)):
        whole = add("0.weight", values.clone())
        rows = [add("0.weight", part.clone(), 100 * i) for i, part in enumerate(values.split(100))]
        assert torch.equal(torch.cat(rows), whole)


def test_a_large_linear_layer_runs_by_rows_in_double_precision():
    layer = nn.Linear(1000, 600)
    model = nn.Sequential(nn.Linear(4, 1000), layer)
    x = torch.randn(3, 4, dtype=torch.float64)
    seen = []

    def load(name, tensor, first):
        seen.append((name, tuple(tensor.shape), first))
        return keep(name, tensor)

    twin = load_in_parts(nn.Sequential(*model), load)
    received = twin(x)
    del layer.forward
    assert [row for name, _, row in seen if name == "1.weight"] == [0, 250, 500]
    assert layer.weight.dtype == torch.float32
    torch.testing.assert_close(received, model.double()(x), rtol=1e-12, atol=1e-12)


def test_depthwise_convolutions_run_on_contiguous_doubles_and_keep_their_layout():
    model = nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 1)).double()
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    expected = model[0](x)
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    run_contiguous(model)
    model(x)
    torch.testing.assert_close(seen[0], expected, rtol=1e-14, atol=1e-14)
    assert seen[0].stride() == expected.stride()


def test_own_weights_and_noise_are_checked_in_double_precision():
    model, x = pruned(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    own, noisy = make_references(model, x, False, Noise(model, ()).add)
    for reference in (own, noisy):
        assert reference.outputs[0][0].dtype == torch.float64
        assert reference.tolerance == 1e-10
    torch.testing.assert_close(own.outputs[0][0], model.double()(x.double()))
    assert not torch.allclose(own.outputs[0][0], noisy.outputs[0][0], rtol=1e-3)


def test_the_error_of_a_result_is_that_in_double_precision():
    model, x = pruned(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    assert speedup(model, x).error < 1e-12


class Folds(nn.Module):
    """Its code has sizes in it, so that it can be cut only as a graph."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        y = self.a(x).relu()
        return self.b(y.reshape(x.shape[0], 8))


def test_a_whole_graph_is_captured_once(monkeypatch):
    calls = []
    original = build.capture_whole
    monkeypatch.setattr(build, "capture_whole", lambda *args: calls.append(1) or original(*args))
    model, x = Folds().eval(), torch.randn(2, 6)
    L1NormPruner(model, RULES, example_inputs=x).compress()
    with torch.no_grad():
        expected = model(x)
    result = speedup(model, x)
    assert result.kind == "graph"
    assert len(calls) == 1
    torch.testing.assert_close(result.model(x), expected)


class Remembers(nn.Module):
    """Has a width that nothing computes with."""

    def __init__(self):
        super().__init__()
        self.num_features = 8
        self.a, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.a(x).relu())


def test_widths_are_checked_along_with_the_cut(monkeypatch):
    tried = []
    original = Trials.run
    monkeypatch.setattr(Trials, "run", lambda self, plan: tried.append(1) or original(self, plan))
    model, x = Remembers().eval(), torch.randn(2, 6)
    L1NormPruner(model, RULES, example_inputs=x).compress()
    result = speedup(model, x)
    assert result.remembered == {"num_features": (8, 4)}
    assert model.num_features == 4
    assert len(tried) == 1


class Wide(nn.Module):
    """Has a layer that is too large to be loaded as a whole."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(512, 1024), nn.Linear(1024, 4)

    def forward(self, x):
        return self.head(self.a(x).relu())


def without_half(model):
    """Return a model whose wide layer has as many zeros as can be cut, and inputs."""
    with torch.no_grad():
        model.a.weight[:512] = model.a.bias[:512] = 0
        model.head.weight[:, :512] = 0
    return model.eval(), torch.randn(2, model.a.in_features)


def _doubled_when_cut(self, x):
    scale = 1 if len(self.weight) == 1024 else 2
    return nn.functional.linear(x, self.weight, self.bias) * scale


class Doubling(nn.Linear):
    """Doubles one output, once it is cut."""

    wrong = 0

    def forward(self, x):
        y = super().forward(x)
        if len(self.weight) == 16:
            return y
        return y * torch.where(torch.arange(len(self.weight)) == self.wrong, 2, 1)


@pytest.mark.parametrize("wrong", range(8))
def test_an_error_in_any_single_channel_is_found_behind_small_weights_and_biases_of_zero(wrong):
    model = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), Doubling(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.normal_(std=1e-3)
            layer.bias.zero_()
        model[2].weight[8:] = 0
        model[4].weight[:, 8:] = 0
    model[2].wrong = wrong
    x = torch.randn(64, 6)
    before = model(x)
    with pytest.raises(UnsupportedModelError):
        speedup(model.eval(), x, allow_graph=False)
    assert torch.equal(model(x), before)


def test_a_large_linear_with_a_forward_of_its_own_is_checked_with_it():
    model, x = without_half(Wide())
    model.a.forward = types.MethodType(_doubled_when_cut, model.a)
    expected = model(x)
    result = speedup(model, x)
    assert len(result.model.a.weight) == 512
    torch.testing.assert_close(result.model(x), expected)


class ByName(Wide):
    """Passes inputs by their names."""

    def forward(self, x):
        return self.head(self.a(input=x).relu())


def test_a_large_linear_called_by_name_is_loaded_in_parts():
    model, x = without_half(ByName())
    assert make_references(model, x, has_casts=False)[0].precision == "parts"


class Viewed(Wide):
    """Has its width in its code."""

    def forward(self, x):
        return self.head(self.a(x).relu().view(-1, 1024))


def test_noise_is_added_once_to_a_large_linear_in_a_traced_model():
    model, x = without_half(Viewed())
    expected = model(x)
    result = speedup(torch.fx.symbolic_trace(model), x)
    assert result.kind == "graph"
    torch.testing.assert_close(result.model(x), expected)


class Rotated(nn.Module):
    """Has complex numbers, and reads tensors of modules that it does not call."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(8, 32768), nn.Linear(32768, 8)
        self.register_buffer("turns", torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        x = torch.fft.irfft(torch.fft.rfft(x) * self.turns, n=8)
        x = nn.functional.linear(x, self.a.weight, self.a.bias).relu()
        return nn.functional.linear(x, self.head.weight) + torch.view_as_real(self.turns).sum()


def test_complex_numbers_stay_complex_with_noise():
    model, x = without_half(Rotated())
    plain, varied = make_references(model, x, has_casts=False, noise=Noise(model, ()).add)
    assert (plain.precision, varied.precision) == ("double", "double")


class Mixed(nn.Module):
    """Insists on the precisions of its layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.low = nn.Linear(6, 6).bfloat16()

    def forward(self, x):
        return self.head(self.b(self.a(x)) + self.low(x.bfloat16()).float())


class Empty(nn.Module):
    """Has a parameter without numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.none = nn.Linear(6, 8), nn.Linear(8, 3), nn.Parameter(torch.ones(0, 3))

    def forward(self, x):
        return torch.cat([self.b(self.a(x)), self.none])


@pytest.mark.parametrize("kind", [Mixed, Empty])
def test_noise_is_the_same_in_any_precision_and_in_parameters_of_any_size(kind):
    model, x = kind().eval(), torch.randn(2, 6)
    with torch.no_grad():
        model.a.weight[:4] = model.a.bias[:4] = 0
        model.b.weight[:, :4] = 0
    expected = model(x)
    speedup(model, x)
    assert len(model.a.weight) == 4
    torch.testing.assert_close(model(x), expected)


class Folded(nn.Module):
    """Has its width in its code and in an attribute, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.hidden = 8
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.randn(3), persistent=False)

    def forward(self, x):
        return self.head(self.b(self.a(x).reshape(-1, 8)).reshape(-1, 8)) + self.shift


def folded():
    """Return the result of cutting such a model, layers of which keep different widths."""
    model = Folded().eval()
    with torch.no_grad():
        model.a.weight[:4] = model.a.bias[:4] = 0
        model.b.weight[:, :4] = 0
        model.b.weight[:2] = model.b.bias[:2] = 0
        model.head.weight[:, :2] = 0
    result = speedup(model, torch.randn(2, 6))
    assert result.kind == "graph"
    return result


def test_buffers_that_are_not_saved_are_not_saved_from_a_captured_model():
    model = folded().model
    assert "shift" in dict(model.named_buffers())
    assert "shift" not in model.state_dict()
    assert "shift" not in copy.deepcopy(model).state_dict()


def test_no_note_names_widths_of_modules_that_a_captured_model_does_not_have():
    assert not any("hidden" in note for note in folded().notes)


class Same(nn.Linear):
    """Is its own copy."""

    def __deepcopy__(self, memo):
        return self


def test_weights_that_copies_share_with_the_model_are_left_alone():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4), Same(4, 4)).eval()
    with torch.no_grad():
        model[0].weight[:4] = model[0].bias[:4] = 0
        model[1].weight[:, :4] = 0
    x = torch.randn(2, 6)
    expected = model(x)
    with pytest.raises(UnsupportedModelError, match=r"the model's own 2\.weight, 2\.bias"):
        speedup(model, x)
    torch.testing.assert_close(model(x), expected)


class Scaled(nn.Conv2d):
    """Convolves with an argument of its own."""

    def forward(self, x):
        return self._conv_forward(x, self.weight, self.bias, 2.0)

    def _conv_forward(self, x, weight, bias, scale):
        return super()._conv_forward(x, weight, bias) * scale


class Spelled(nn.Conv2d):
    """Calls torch's method by the names of its arguments."""

    def forward(self, x):
        return self._conv_forward(input=x, weight=self.weight, bias=self.bias)


@pytest.mark.parametrize("kind", [nn.Conv2d, Scaled, Spelled])
def test_depthwise_convolutions_of_any_class_are_compared_in_double_precision(kind):
    model = nn.Sequential(kind(4, 4, 3, groups=4), nn.ReLU()).eval()
    image = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    (reference,) = make_references(model, image, has_casts=False)
    assert reference.precision == "parts"
    assert torch.allclose(reference.outputs[0][0].float(), model(image), atol=1e-5)


class Keeping(nn.Linear):
    """Keeps a tensor of its last run."""

    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept


def test_copies_that_are_made_again_give_their_memory_back(monkeypatch):
    made = []
    make = verify.Twin.__init__

    def note(twin, *given):
        make(twin, *given)
        made.append(twin)

    monkeypatch.setattr(verify.Twin, "__init__", note)
    model = nn.Sequential(Keeping(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    make_references(model, torch.randn(2, 6), False, Noise(model, []).add)
    assert len(made) == 2
    assert all(not p.numel() for twin in made for p in twin.model.parameters())
    assert model[0].weight.numel() == 48
