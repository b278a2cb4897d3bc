"""Between construction and ``compress()``: the optimizer's steps are followed, the model is as it was."""

import gc

import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError, StageError
from lilliput.torch import (
    ActivationMeanRankPruner,
    AGPPruner,
    LevelPruner,
    LSQPlusQuantizer,
    LSQQuantizer,
    MovementPruner,
    Pruner,
    QATQuantizer,
    Quantizer,
    SlimPruner,
    STRPruner,
    TaylorFOWeightPruner,
)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()


RULE = [{"op_names": ["0"], "sparsity": 0.5}]


class Counting(Pruner):
    def calc_mask(self, wrapper, wrapper_idx=None):
        self.calls = [*getattr(self, "calls", []), wrapper.name]
        return {"weight_mask": (wrapper.weight > 0).float()}


def test_calc_mask_is_called_at_steps_before_compress_and_its_mask_waits_for_compress():
    model = net()
    optimizer = sgd(model)
    pruner = Counting(model, RULE, optimizer)
    train(model, optimizer)
    assert pruner.calls == ["0"]
    assert (model[0].weight != 0).all()
    assert type(model[0]) is nn.Linear
    expected = pruner.get_modules_wrapper()[0].weight_mask.clone()
    assert 0 < expected.mean() < 1
    pruner.compress()
    assert torch.equal(model[0].weight != 0, model[0].weight > 0)


def test_taylor_prunes_at_compress_by_the_gradients_of_earlier_steps():
    model = net()
    optimizer = sgd(model)
    pruner = TaylorFOWeightPruner(model, RULE, optimizer, training_batches=2)
    expected = torch.zeros(8)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        expected += (model[0].weight.grad * model[0].weight.detach()).square().sum(1)
        optimizer.step()
    pruner.compress()
    pruned = (model[0].weight == 0).all(1)
    assert torch.equal(pruned.nonzero().flatten(), expected.argsort()[:4].sort().values)


def test_activations_of_earlier_steps_count():
    model = net()
    optimizer = sgd(model)
    pruner = ActivationMeanRankPruner(model, RULE, optimizer, training_batches=1)
    x = torch.randn(16, 6)
    model(x).square().mean().backward()
    expected = model[0](x).relu().mean(0).argsort()[:4].sort().values
    optimizer.step()
    pruner.compress()
    assert torch.equal((model[0].weight == 0).all(1).nonzero().flatten(), expected)


def test_a_one_shot_pruner_ranks_the_weights_of_compress_and_not_of_an_earlier_step():
    model = net()
    optimizer = sgd(model)
    pruner = LevelPruner(model, RULE, optimizer)
    train(model, optimizer)
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(1.0, 49.0).reshape(8, 6).flip(0))
    pruner.compress()
    assert torch.equal((model[0].weight == 0).all(1), torch.arange(8) >= 4)


def test_the_penalty_of_slim_begins_with_compress():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    optimizer = sgd(model)
    SlimPruner(model, [{"sparsity": 0.5}], optimizer, training_epochs=1, scale=10.0)
    twin = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    twin.load_state_dict(model.state_dict())
    other = sgd(twin)
    x = torch.randn(16, 6)
    for one, its in ((model, optimizer), (twin, other)):
        one(x).square().mean().backward()
        its.step()
    assert torch.equal(model[1].weight, twin[1].weight)


def test_steps_of_a_quantizer_and_tasks_count_from_construction():
    calls = []

    class Mine(Quantizer):
        def quantize_weight(self, weight, config, **kwargs):
            return weight

        def step(self):
            calls.append("step")

    model = net()
    optimizer = sgd(model)
    quantizer = Mine(model, [{"op_types": ["Linear"]}], optimizer)
    quantizer.patch_optimizer(lambda: calls.append("task"))
    train(model, optimizer, 2)
    assert calls == ["task", "step"] * 2
    quantizer.compress()
    train(model, optimizer)
    assert calls == ["task", "step"] * 3

    model = net()
    optimizer = sgd(model)
    rules = [{"op_types": ["Linear"], "quant_bits": 8}]
    delayed = QATQuantizer(model, rules, optimizer, quant_start_step=3)
    train(model, optimizer, 2)
    delayed.compress()
    assert not delayed.get_modules_wrapper()[0].is_on
    train(model, optimizer)
    assert delayed.get_modules_wrapper()[0].is_on


@pytest.mark.parametrize(
    "make",
    [
        lambda m, o: STRPruner(m, [{"op_types": ["Linear"]}], o, start=-3.0),
        lambda m, o: MovementPruner(m, RULE, o, 1, 4),
        lambda m, o: AGPPruner(m, [{"final_sparsity": 0.5}], o, soft=True),
        lambda m, o: LSQQuantizer(m, [{"op_types": ["Linear"], "quant_bits": 8}], o),
        lambda m, o: LSQPlusQuantizer(m, [{"op_types": ["Linear"], "quant_bits": 8}], o),
    ],
)
def test_what_is_learned_is_learned_from_compress_on(make):
    outputs = []
    for is_early in (True, False):
        model = net()
        optimizer = sgd(model)
        compressor = make(model, optimizer) if is_early else None
        train(model, optimizer)
        compressor = compressor or make(model, optimizer)
        compressor.compress()
        torch.manual_seed(1)
        train(model, optimizer, 3)
        outputs.append(model(torch.ones(1, 6)))
    assert torch.equal(*outputs)


def test_strip_before_compress_leaves_the_optimizer():
    model = net()
    optimizer = sgd(model)
    pruner = Counting(model, RULE, optimizer)
    pruner.strip()
    train(model, optimizer)
    assert not hasattr(pruner, "calls")
    assert not optimizer._optimizer_step_post_hooks


def test_a_pruner_that_nobody_keeps_follows_nothing():
    model = net()
    optimizer = sgd(model)
    calls = []

    class Mine(Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            calls.append(wrapper.name)

    Mine(model, RULE, optimizer)
    gc.collect()
    train(model, optimizer)
    assert calls == []
    with pytest.raises(ConfigError, match="training_batches"):
        TaylorFOWeightPruner(model, RULE, optimizer, training_batches=0)
    gc.collect()
    train(model, optimizer)


def test_a_compress_that_fails_goes_on_watching():
    model = net()
    optimizer = sgd(model)

    class Failing(Counting):
        fails = True

        def bind_model(self, model):
            if self.fails:
                raise RuntimeError("not yet")

    pruner = Failing(model, RULE, optimizer)
    with pytest.raises(RuntimeError):
        pruner.compress()
    train(model, optimizer)
    assert pruner.calls == ["0"]
    pruner.fails = False
    pruner.compress()
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_masks_that_never_came_are_not_exported(tmp_path):
    model = net()
    optimizer = sgd(model)
    pruner = TaylorFOWeightPruner(model, RULE, optimizer, training_batches=3)
    pruner.compress()
    train(model, optimizer)
    with pytest.raises(StageError, match="2 of 3 batches are missing for layer '0'"):
        pruner.export_model(str(tmp_path / "model.pth"), str(tmp_path / "mask.pth"))
    assert not list(tmp_path.iterdir())
    train(model, optimizer, 2)
    pruner.export_model(str(tmp_path / "model.pth"), str(tmp_path / "mask.pth"))
