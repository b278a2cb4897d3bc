"""Channels that the others can make up for go first, per multiplication that they save."""

import copy

import pytest
import torch
from torch import nn

from lilliput import progress
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.torch import L1NormPruner, LeastSquaresPruner, reconstruct


def net():
    """A convolution with one constant channel and one that repeats another, both with large weights."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5)).eval()
    with torch.no_grad():
        model[0].weight[2], model[0].bias[2] = 0, 3
        model[0].weight[5], model[0].bias[5] = 2 * model[0].weight[1], 2 * model[0].bias[1]
        model[2].weight[:, 2] *= 10
        for channel in (3, 4, 6):  # small weights that are read with large ones: the same function
            model[0].weight[channel] /= 20
            model[0].bias[channel] /= 20
            model[2].weight[:, channel] *= 20
    return model


def pruned(cls, model, **rule):
    x = torch.randn(512, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    pruner = cls(model, [{"op_types": ["Conv2d"], **rule}], example_inputs=x[:2])
    if cls is LeastSquaresPruner:
        pruner.calibrate([x[:200], x[200:]])
    pruner.compress()
    return x


def gone(layer):
    return (layer.weight.detach().flatten(1) == 0).all(1).nonzero().flatten().tolist()


def test_what_is_constant_and_what_is_said_twice_goes_first():
    model = net()
    pruned(LeastSquaresPruner, model, op_names=["0"], sparsity=0.25)
    assert 2 in gone(model[0])
    assert len({1, 5} & set(gone(model[0]))) == 1


def test_layers_that_are_called_by_keyword_are_seen():
    class ByKeyword(nn.Sequential):
        def forward(self, x):
            for layer in self:
                x = layer(input=x)
            return x

    found = []
    for kind in (nn.Sequential, ByKeyword):
        model = kind(*list(net())[:3])
        torch.manual_seed(2)
        pruned(LeastSquaresPruner, model, op_names=["0"], sparsity=0.25)
        found.append(gone(model[0]))
    assert len(found[0]) == 2 and found[0] == found[1]


def test_batches_without_examples_show_nothing():
    model, x = net(), torch.randn(64, 3, 8, 8)
    pruner = LeastSquaresPruner(
        model, [{"op_names": ["0"], "sparsity": 0.25}], example_inputs=x[:2]
    )
    pruner.compress()
    with pytest.raises(AlgorithmError, match="no data was collected from layer '2'"):
        pruner.calibrate([x[:0]])
    assert gone(model[0]) == [2]  # as before
    pruner.calibrate([x, x[:0]])
    assert len(gone(model[0])) == 2


def test_after_reconstruction_less_is_lost_than_by_the_smallest_weights():
    errors = []
    for cls in (LeastSquaresPruner, L1NormPruner):
        model = net()
        teacher = copy.deepcopy(model)
        x = pruned(cls, model, op_names=["0"], sparsity=0.375)
        reconstruct(model, [x], teacher, progress=False)
        with torch.no_grad():
            errors.append(float((model(x) - teacher(x)).square().mean()))
    assert errors[0] < 0.9 * errors[1]


def test_for_a_budget_scores_count_per_multiplication_saved():
    """Two branches alike, of which one works on more pixels: that one loses more."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = (
                nn.Sequential(nn.Conv2d(3, 16, 1, stride=s), nn.ReLU(), nn.Conv2d(16, 4, 1))
                for s in (4, 1)
            )
            self.large.load_state_dict(self.small.state_dict())

        def forward(self, x):
            return self.small(x).mean((2, 3)) + self.large(x).mean((2, 3))

    torch.manual_seed(0)
    model = Branches()
    pruned(LeastSquaresPruner, model, max_macs=0.7)
    assert len(gone(model.large[0])) > len(gone(model.small[0]))


def test_example_inputs_are_asked_for():
    with pytest.raises(ConfigError, match="needs example_inputs"):
        LeastSquaresPruner(net(), [{"sparsity": 0.5}])


def test_channels_that_nobody_is_seen_to_read_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 6), nn.LSTM(6, 3, batch_first=True))
    rules = [{"op_types": ["Linear"], "sparsity": 0.5}]
    with pytest.raises(ConfigError, match="can be observed"):
        LeastSquaresPruner(model, rules, example_inputs=torch.randn(2, 5, 4))


@pytest.mark.parametrize("is_shown", [True, False])
def test_progress_is_shown_unless_it_is_not_wanted(is_shown, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_IN_A_LOG", 0.0)  # a line for each item
    x = torch.randn(8, 3, 8, 8)
    pruner = LeastSquaresPruner(net(), [{"sparsity": 0.5}], example_inputs=x[:2])
    pruner.calibrate([x[:4], x[4:]], progress=is_shown)
    pruner.compress()
    lines = capsys.readouterr().err.splitlines()
    kinds = {line.partition(":")[0] for line in lines}
    assert kinds == ({"calibrating", "ranking channels"} if is_shown else set())
