"""Layers behind removed channels are refitted, masks stay, and what can be exact is exact."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from lilliput.errors import AlgorithmError, StageError, UnsupportedModelError
from lilliput.torch import L1NormPruner, LevelPruner, NaiveQuantizer, reconstruct, speedup


def error(model, teacher, x):
    with torch.no_grad():
        return float((model(x) - teacher(x)).square().mean() / teacher(x).var())


def pruned(model, x, **rule):
    """Return the model with some channels masked, and the model as it was."""
    teacher = copy.deepcopy(model)
    return L1NormPruner(model, [rule], example_inputs=x[:2]).compress(), teacher


class Block(nn.Module):
    """An inverted bottleneck with a shortcut, in place like those people write."""

    def __init__(self, width=8, hidden=24):
        super().__init__()
        self.expand = nn.Conv2d(width, hidden, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(hidden)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden)
        self.act = nn.ReLU6(inplace=True)
        self.project = nn.Conv2d(hidden, width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = self.act(self.norm1(self.expand(x)))
        y = self.act(self.norm2(self.depthwise(y)))
        x += self.norm3(self.project(y))
        return x


def mobile_net():
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU6()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    model = nn.Sequential(*stem, Block(), Block(), *head).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.bias.data.normal_()
    return model


def test_a_constant_channel_costs_nothing():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6()]
    model = nn.Sequential(*layers, nn.Conv2d(6, 4, 1)).eval()
    with torch.no_grad():
        model[0].weight[2] = 1e-9  # what is left of a channel is ReLU6(shift)
        model[1].bias[2] = 1.5
    x = torch.randn(16, 3, 5, 5)
    model, teacher = pruned(model, x, op_names=["0"], sparsity=1 / 6)
    assert not model[0].weight[2].any()
    assert error(model, teacher, x) > 0.05
    reconstruct(model, [x], teacher, ridge=1e-8, progress=False)
    assert error(model, teacher, torch.randn(16, 3, 5, 5)) < 1e-8


def test_channels_that_repeat_others_cost_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    with torch.no_grad():
        model[0].weight[4:] = 0.5 * model[0].weight[:4]
        model[0].bias[4:] = 0.5 * model[0].bias[:4]
    x = torch.randn(64, 5)
    model, teacher = pruned(model, x, op_names=["0"], sparsity=0.5)
    reconstruct(model, [x], teacher, ridge=1e-8, progress=False)
    assert error(model, teacher, torch.randn(64, 5)) < 1e-8


@pytest.mark.parametrize("size", [6, 5])
def test_a_network_with_shortcuts_comes_close_again_and_can_be_cut(size):
    model = mobile_net()
    batches = [torch.randn(n, 3, 16, 16) for n in (6, 6, size)]
    fresh = torch.randn(16, 3, 16, 16)
    model, teacher = pruned(model, fresh, op_names=["*.expand"], sparsity=0.3)
    before = error(model, teacher, fresh)
    result = reconstruct(model, [(x, "a target") for x in batches], teacher, progress=False)
    after = error(model, teacher, fresh)
    assert after < 0.5 * before
    assert all(fitted <= start + 1e-6 for start, fitted in result.errors.values())
    assert "3.project.weight" in str(result)
    answer = model(fresh)
    shrunk = speedup(model, fresh[:2])
    assert shrunk.model[3].expand.out_channels == 17
    torch.testing.assert_close(shrunk.model(fresh), answer, rtol=1e-4, atol=1e-4)


def test_the_layout_of_weights_does_not_matter():
    """Channels last, as for faster training: views of such weights are not of the usual strides."""
    torch.manual_seed(0)
    x, refitted = torch.randn(8, 3, 6, 6), []
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    for layout in (torch.contiguous_format, torch.channels_last):
        model = copy.deepcopy(plain).to(memory_format=layout)
        model, teacher = pruned(model, x, op_names=["0"], sparsity=0.5)
        reconstruct(model, [x], teacher, progress=False)
        refitted.append(model(x))
    torch.testing.assert_close(*refitted)


def test_the_teacher_and_the_modes_stay_as_they_were():
    model = mobile_net()
    x = torch.randn(8, 3, 16, 16)
    model, teacher = pruned(model, x, op_names=["*.expand"], sparsity=0.3)
    before = copy.deepcopy(teacher.state_dict())
    model.train()
    reconstruct(model, [x], teacher, progress=False)
    assert model.training
    assert model[3].norm1.training
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


class Conv(nn.Module):
    """One convolution in between, called in an unusual way."""

    def __init__(self, dims, **options):
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.first, self.second = conv(2, 12, 1), conv(12, 6, 3, **options)

    def forward(self, x):
        return self.second(functional.hardswish(self.first(x)))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1, "stride": 2},
        {"padding": "same", "dilation": 2},
        {"padding": 2, "groups": 3, "bias": False},
    ],
)
def test_convolutions_of_all_kinds_are_refitted(dims, options):
    torch.manual_seed(0)
    model = Conv(dims, **options)
    x = torch.randn(24, 2, *[8] * dims)
    model, teacher = pruned(model, x, op_names=["first"], sparsity=0.25)
    before = error(model, teacher, x)
    result = reconstruct(model, [x], teacher, ridge=1e-6, progress=False)
    assert list(result.errors) == ["second.weight"]
    assert error(model, teacher, x) < 0.9 * before
    assert int((model.first.weight == 0).flatten(1).all(1).sum()) == 3


def test_patches_are_what_the_layer_multiplies():
    """The error that the equations give for the weight as it is is the one that is measured."""
    torch.manual_seed(0)
    model = Conv(2, padding="same", dilation=2)
    x = torch.randn(24, 2, 8, 8)
    model, teacher = pruned(model, x, op_names=["first"], sparsity=0.25)
    before = error(model, teacher, x)
    result = reconstruct(model, [x], teacher, progress=False)
    with torch.no_grad():
        within = teacher(x).transpose(0, 1).flatten(1).var(1).mean()
        share = float(teacher(x).var() / within)
    assert result.errors["second.weight"][0] == pytest.approx(before * share, rel=1e-3)


def test_layers_with_single_masked_weights_are_left_and_said():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    teacher, x = copy.deepcopy(model), torch.randn(32, 4)
    model = LevelPruner(model, [{"sparsity": 0.5}]).compress()
    weight = model[2].weight.detach().clone()
    result = reconstruct(model, [x], teacher, progress=False)
    assert result.left == {"2.weight": "single weights of it are masked"}
    assert torch.equal(model[2].weight, weight)


def test_wrong_calls_say_what_to_do():
    x = torch.randn(4, 3, 16, 16)
    model, teacher = pruned(mobile_net(), x, op_names=["*.expand"], sparsity=0.3)
    with pytest.raises(AlgorithmError, match="no batches"):
        reconstruct(model, [], teacher)
    shrunk = speedup(model, x).model
    with pytest.raises(StageError, match="before speedup"):
        reconstruct(shrunk, [x], teacher)
    NaiveQuantizer(shrunk, [{"op_types": ["Linear"]}]).compress()
    with pytest.raises(StageError, match="quantize then"):
        reconstruct(shrunk, [x], copy.deepcopy(shrunk))


def test_norms_over_masked_channels_are_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    x = torch.randn(8, 4)
    model, teacher = pruned(model, x, op_names=["0"], sparsity=0.5)
    with pytest.raises(UnsupportedModelError, match="normalizes over channels"):
        reconstruct(model, [x], teacher)


class Roots(nn.Module):
    """Computes what is not a number behind its second layer, of some inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        y = self.second(self.first(x).relu())
        return self.last((y + 30).sqrt())


def test_a_batch_that_is_not_a_number_is_named_and_nothing_changes():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model, teacher = pruned(Roots(), x, op_names=["first"], sparsity=0.5)
    before = copy.deepcopy(model.state_dict())
    far = x.clone()
    far[7] = 1e4
    with pytest.raises(
        AlgorithmError,
        match=r"reconstruct\(\): batch 2: the inputs or target outputs of layer 'last'",
    ):
        reconstruct(model, [x, far], teacher, progress=False)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    reconstruct(model, [x], teacher, progress=False)
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
