"""NNI's MovementPruner: both generations train inside compress(), and lead to today's."""

import importlib

import pytest
import torch
from torch import nn

import lilliput.torch
from lilliput.compat.nni import install, uninstall
from lilliput.errors import ConfigError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


class Training:
    """A model with an evaluator that counts its steps."""

    def __init__(self, path, adam=True):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
        kind = torch.optim.Adam if adam else torch.optim.SGD
        self.optimizer = kind(self.model.parameters(), lr=1e-3)
        self.steps = 0
        evaluator = importlib.import_module(path).TorchEvaluator
        self.evaluator = evaluator(self.train, self.optimizer, nn.functional.mse_loss)

    def train(self, model, optimizer, step, schedulers=None, max_steps=None, max_epochs=None):
        for _ in range(max_steps or 5 * max_epochs):
            optimizer.zero_grad()
            x = torch.randn(6, 8)
            nn.functional.mse_loss(model(x), x[:, :4]).backward()
            optimizer.step()
            self.steps += 1


RULES = [{"sparsity": 0.5, "op_types": ["Linear"]}]


def test_v2_trains_for_its_epochs():
    pruners = importlib.import_module("nni.compression.pytorch.pruning")
    made = Training("nni.compression.pytorch")
    pruner = pruners.MovementPruner(made.model, RULES, made.evaluator, 2, 8, training_epochs=2)
    model, masks = pruner.compress()
    assert isinstance(pruner, lilliput.torch.MovementPruner)
    assert made.steps == 10
    assert pruner.score_scale == pytest.approx(10)  # NNI's scores had a learning rate of 0.01
    for name, size in (("0", 96), ("2", 48)):
        assert int((masks[name]["weight"] == 0).sum()) == size // 2
        assert torch.equal(model[int(name)].weight == 0, masks[name]["weight"] == 0)


def test_v2_takes_a_trainer():
    pruners = importlib.import_module("nni.compression.pytorch.pruning")
    made = Training("nni.compression.pytorch", adam=False)

    def trainer(model, optimizer, criterion):
        made.train(model, optimizer, None, max_steps=4)

    pruner = pruners.MovementPruner(
        made.model, RULES, trainer, made.optimizer, nn.functional.mse_loss, 3, 2, 8
    )
    masks = pruner.compress()[1]
    assert made.steps == 12
    assert int((masks["0"]["weight"] == 0).sum()) == 48


def test_v3_has_thresholds():
    pruners = importlib.import_module("nni.compression.pruning")
    made = Training("nni.compression")
    rules = [{"sparse_threshold": 0.49, "op_types": ["Linear"]}]
    pruner = pruners.MovementPruner(made.model, rules, made.evaluator, 2, 8, regular_scale=20.0)
    _, masks = pruner.compress(max_steps=12)
    assert made.steps == 12
    assert (pruner.movement_mode, pruner.regular_scale) == ("soft", 20.0)
    for wrapper in pruner.get_modules_wrapper():
        kept = torch.sigmoid(wrapper.movement_score.detach() * pruner.score_scale) > 0.49
        assert torch.equal(kept, masks[wrapper.name]["weight"] != 0)


def test_v3_has_ratios_without_a_penalty():
    pruners = importlib.import_module("nni.compression.pruning")
    made = Training("nni.compression")
    rules = [{"sparse_ratio": 0.25, "op_types": ["Linear"]}]
    pruner = pruners.MovementPruner(made.model, rules, made.evaluator, 2, 8)
    _, masks = pruner.compress(max_steps=9)
    assert (pruner.movement_mode, pruner.regular_scale) == ("hard", 0.0)
    assert int((masks["0"]["weight"] == 0).sum()) == 24


def test_what_is_not_there_is_refused():
    second = importlib.import_module("nni.compression.pytorch.pruning")
    third = importlib.import_module("nni.compression.pruning")
    made = Training("nni.compression")
    with pytest.raises(ConfigError, match="sparse_granularity 'auto' is not available"):
        second.MovementPruner(made.model, RULES, made.evaluator, 2, 8, sparse_granularity="auto")
    mixed = [
        {"sparse_ratio": 0.5, "op_names": ["0"]},
        {"sparse_threshold": 0.1, "op_names": ["2"]},
    ]
    with pytest.raises(ConfigError, match="one pruner for each"):
        third.MovementPruner(made.model, mixed, made.evaluator, 2, 8)
    rule = {"sparse_ratio": 0.5, "op_types": ["Linear"], "global_group_id": 1}
    with pytest.raises(ConfigError, match="are not available"):
        third.MovementPruner(made.model, [rule], made.evaluator, 2, 8)
