"""SecondOrderPruner: against least squares in NumPy, and against magnitude on real digits."""

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from lilliput.errors import AlgorithmError, ConfigError, StageError
from lilliput.torch import AGPPruner, LevelPruner, NaiveQuantizer, SecondOrderPruner


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, 2, 1, groups=16)
        self.mix = nn.Conv2d(16, 32, 3, 1, 1, groups=2)
        self.body = nn.Conv2d(32, 32, 3, 1, 1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.mix(F.relu(self.depthwise(F.relu(self.norm(self.stem(x)))))))
        return self.head(F.relu(x + self.body(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def digits():
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    model = Residual()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(12):
        for part in torch.randperm(1300).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return model.eval(), x[:1300], x[1300:], y[1300:]


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model.eval()(x).argmax(1) == y).float().mean())


def second_order(model, rules, batches, **options):
    pruner = SecondOrderPruner(model, rules, **options)
    pruner.calibrate(batches)
    return pruner.compress(), pruner


@pytest.mark.parametrize("rule", [{"sparsity": 0.8}, {"total_sparsity": 0.85}])
def test_it_keeps_most_of_what_magnitude_loses(digits, rule):
    trained, x, test_x, test_y = digits
    dense = accuracy(trained, test_x, test_y)
    plain, fitted = copy.deepcopy(trained), copy.deepcopy(trained)
    LevelPruner(plain, [rule]).compress()
    second_order(fitted, [rule], x[:500].split(100))
    lost = dense - accuracy(plain, test_x, test_y)
    assert dense > 0.93 and lost > 0.2
    assert accuracy(fitted, test_x, test_y) > dense - 0.3 * lost
    zeros = [int((p == 0).sum()) for p in fitted.parameters() if p.dim() > 1]
    sizes = [p.numel() for p in fitted.parameters() if p.dim() > 1]
    if "sparsity" in rule:
        assert zeros == [round(n * 0.8) for n in sizes]
    assert sum(zeros) == pytest.approx(sum(sizes) * next(iter(rule.values())), abs=len(sizes))


def test_a_layer_is_the_best_fit_with_its_zeros():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 5))
    x = torch.randn(400, 12) @ torch.randn(12, 12)
    wanted = model(x).detach().double().numpy()
    model, pruner = second_order(model, [{"sparsity": 0.5}], [x], ridge=1e-9)
    weight, bias = (t.detach().double().numpy() for t in (model[0].weight, model[0].bias))
    inputs = np.column_stack([x.double().numpy(), np.ones(400)])
    for row in range(5):
        kept = np.append(weight[row] != 0, True)
        expected = np.linalg.lstsq(inputs[:, kept], wanted[:, row], rcond=None)[0]
        assert np.allclose(np.append(weight[row], bias[row])[kept], expected, atol=1e-4)
    ((before, after),) = pruner.result.errors.values()
    got = np.square(model(x).detach().double().numpy() - wanted).sum()
    assert after == pytest.approx(got / np.square(wanted - wanted.mean(0)).sum(), rel=1e-3)
    assert after < before


def test_a_later_layer_reads_what_the_pruned_ones_before_it_return():
    """It is fitted to the original's outputs from those inputs, not from the original's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(500, 6)
    wanted = model(x).detach()
    rules = [{"op_names": ["0"], "sparsity": 0.5}, {"op_names": ["2"], "sparsity": 0.0}]
    model, _ = second_order(model, rules, [x], ridge=1e-9)
    with torch.no_grad():
        hidden = torch.cat([F.relu(model[0](x)), torch.ones(500, 1)], 1).double()
        expected = torch.linalg.lstsq(hidden, wanted.double()).solution
        got = torch.cat([model[2].weight.T, model[2].bias[None]])
    assert torch.allclose(got.double(), expected, atol=1e-3)


@pytest.mark.parametrize("granularity", ["2:4", [4, 1]])
def test_patterns_and_blocks_hold(digits, granularity):
    trained, x, _, _ = digits
    rule = {"op_names": ["mix", "body"], "granularity": granularity}
    rules = [rule if granularity == "2:4" else {**rule, "sparsity": 0.5}]
    model, _ = second_order(copy.deepcopy(trained), rules, x[:300].split(100))
    kept = (model.body.weight != 0).numpy()
    if granularity == "2:4":
        assert (kept.reshape(32, 8, 4, 3, 3).sum(2) == 2).all()
    else:
        assert set(np.unique(kept.reshape(8, 4, 32, 9).sum((1, 3)))) == {0, 36}
    assert torch.equal(model.stem.weight, trained.stem.weight)  # what no rule names stays


def test_calibrating_before_or_after_compress_is_the_same(digits):
    trained, x, _, _ = digits
    batches = x[:200].split(100)
    first, _ = second_order(copy.deepcopy(trained), [{"sparsity": 0.5}], batches)
    second = copy.deepcopy(trained)
    pruner = SecondOrderPruner(second, [{"sparsity": 0.5}])
    pruner.compress()
    assert torch.equal(second.body.weight, trained.body.weight)
    pruner.calibrate(batches)
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_model_that_has_changed_since_is_not_overwritten():
    model = nn.Sequential(nn.Linear(4, 4))
    pruner = SecondOrderPruner(model, [{"sparsity": 0.5}])
    pruner.calibrate([torch.randn(20, 4)])
    with torch.no_grad():
        model[0].weight.add_(1)
    before = model[0].weight.detach().clone()
    with pytest.raises(StageError, match="has changed since calibrate"):
        pruner.compress()
    assert torch.equal(model[0].weight, before) and type(model[0]) is nn.Linear
    pruner.calibrate([torch.randn(20, 4)])
    assert int((pruner.compress()[0].weight == 0).sum()) == 8


def test_zeros_from_before_do_not_come_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8))
    first = LevelPruner(model, [{"sparsity": 0.5}])
    first.compress()
    first.strip()
    gone = model[0].weight == 0
    second_order(model, [{"sparsity": 0.25}], [torch.randn(64, 8)])
    assert bool((model[0].weight[gone] == 0).all())
    second_order(model, [{"sparsity": 0.75}], [torch.randn(64, 8)])
    assert bool((model[0].weight[gone] == 0).all()) and int((model[0].weight == 0).sum()) == 48


def test_what_cannot_be_fitted_is_pruned_by_magnitude_and_listed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.used_twice = nn.Linear(6, 6)
            self.last = nn.Linear(6, 2)

        def forward(self, x):
            return self.last(self.used_twice(self.used_twice(x)))

    torch.manual_seed(0)
    model, twin = Twice(), Twice()
    twin.load_state_dict(model.state_dict())
    _, pruner = second_order(model, [{"sparsity": 0.5}], [torch.randn(64, 6)])
    LevelPruner(twin, [{"sparsity": 0.5}]).compress()
    assert torch.equal(model.used_twice.weight, twin.used_twice.weight)
    assert not torch.equal(model.last.weight, twin.last.weight)
    assert "pruned by magnitude" in pruner.result.left["used_twice"]
    assert "used_twice" in str(pruner.result)


def test_a_saved_state_goes_on(tmp_path, digits):
    trained, x, _, _ = digits
    model, pruner = second_order(copy.deepcopy(trained), [{"sparsity": 0.5}], [x[:100]])
    pruner.state().save(tmp_path / "state")
    other = copy.deepcopy(trained)
    again = SecondOrderPruner(other, [{"sparsity": 0.5}])
    again.compress()
    again.load_state(tmp_path / "state")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x[:8]), model(x[:8]))
    optimizer = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
    again.bind_optimizer(optimizer)
    F.cross_entropy(other(x[:8]), torch.zeros(8, dtype=torch.long)).backward()
    optimizer.step()
    assert torch.equal(other.body.weight == 0, model.body.weight == 0)


def test_what_makes_no_sense_is_refused():
    model = nn.Linear(4, 4)
    with pytest.raises(ConfigError, match="ridge: received 0"):
        SecondOrderPruner(model, [{"sparsity": 0.5}], ridge=0)
    with pytest.raises(ConfigError, match="prunes once"):
        AGPPruner(model, [{"final_sparsity": 0.5}], pruning_algorithm="second_order")
    pruner = SecondOrderPruner(model, [{"sparsity": 0.5}])
    with pytest.raises(AlgorithmError, match=r"calibrate\(\): no batches"):
        pruner.calibrate([])
    pruner.compress()
    with pytest.raises(StageError, match="has not been called"):
        pruner.export_model("never.safetensors")
    NaiveQuantizer(model, [{"quant_bits": 4}]).compress()
    with pytest.raises(StageError, match="quantize then"):
        pruner.calibrate([torch.randn(8, 4)])


def test_a_second_calibration_shares_by_the_weights_as_they_are():
    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def start(model):
        return SecondOrderPruner(model, [{"op_types": ["Linear"], "total_sparsity": 0.5}])

    model, x = make(), torch.randn(128, 8)
    pruner = start(model)
    pruner.calibrate([x])
    changed = make()
    with torch.no_grad():
        changed[0].weight[2:] *= 0.001
    model.load_state_dict(changed.state_dict())
    pruner.calibrate([x])
    pruner.compress()
    fresh = start(changed)
    fresh.calibrate([x])
    fresh.compress()
    assert torch.equal(model[0].weight == 0, changed[0].weight == 0)
    assert torch.equal(model[2].weight == 0, changed[2].weight == 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_that_is_not_a_number_is_named_and_nothing_changes(bad):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(3, 32, 6)
    spoilt = x.clone()
    spoilt[1, 5, 2] = bad
    pruner = SecondOrderPruner(model, [{"sparsity": 0.5}])
    with pytest.raises(
        AlgorithmError, match=r"calibrate\(\): batch 2: the inputs or target outputs of layer '0'"
    ):
        pruner.calibrate(list(spoilt))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    pruner.calibrate(list(x))
    assert int((pruner.compress()[0].weight == 0).sum()) == 24


def test_a_batch_without_examples_is_named_and_nothing_changes():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    before = copy.deepcopy(model.state_dict())
    pruner = SecondOrderPruner(model, [{"op_types": ["Linear"], "sparsity": 0.5}])
    pruner.compress()
    with pytest.raises(AlgorithmError, match=r"calibrate\(\): batch 2 has no examples"):
        pruner.calibrate([torch.randn(4, 8), torch.zeros(0, 8)])
    pruner.strip()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
