"""SparseVDPruner: its formulas against NumPy and autograd, its noise against sampling, real digits."""

import copy
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from lilliput.errors import ConfigError, StageError
from lilliput.pruning.sparse_vd import divergence, log_alpha
from lilliput.torch import Distiller, SparseVDPruner

RULES = [{"op_types": ["Linear", "Conv2d"]}]


def start(model, epochs=10, examples=100, rules=RULES, optimizer=None, **options):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 5e-3)
    pruner = SparseVDPruner(
        model, rules, optimizer, training_epochs=epochs, training_examples=examples, **options
    )
    pruner.compress()
    return pruner, optimizer


def test_the_divergence_is_the_papers():
    alphas = np.linspace(-12, 12, 49)
    sigmoid = 1 / (1 + np.exp(-(1.87320 + 1.48695 * alphas)))
    minus_kl = 0.63576 * sigmoid - 0.5 * np.log1p(np.exp(-alphas)) - 0.63576
    assert np.allclose(divergence(torch.tensor(alphas)).numpy(), -minus_kl, atol=1e-12)
    variable = torch.tensor(alphas, requires_grad=True)
    divergence(variable).sum().backward()
    slope = -0.63576 * 1.48695 * sigmoid * (1 - sigmoid) - 0.5 / (1 + np.exp(alphas))
    assert np.allclose(variable.grad.numpy(), slope, atol=1e-12)


def test_layers_that_are_called_by_keyword_get_the_same_noise():
    class ByKeyword(nn.Module):
        def __init__(self, is_named):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.fc, self.is_named = nn.Conv2d(1, 4, 2), nn.Linear(4, 2), is_named

        def forward(self, x):
            if self.is_named:
                return self.fc(input=self.conv(input=x).mean((2, 3)))
            return self.fc(self.conv(x).mean((2, 3)))

    found = []
    for is_named in (False, True):
        model = ByKeyword(is_named)
        start(model)
        torch.manual_seed(1)
        found.append(model(torch.ones(8, 1, 4, 4)))
    assert torch.equal(*found)
    assert float(found[0].detach().std(0).min()) > 0


def test_noise_reaches_a_model_compiled_after_one_whose_noise_is_over():
    """Hooks are not guarded by torch.compile, which would use the graph without noise again."""
    x, found = torch.ones(8, 4), []
    for epoch in (1, 0):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        pruner, optimizer = start(model, epochs=1)
        compiled = torch.compile(model, backend="eager")
        for now in range(epoch + 1):
            pruner.update_epoch(now)
            optimizer.zero_grad()
            compiled(x).sum().backward()
            optimizer.step()
        torch.manual_seed(1)
        found.append(compiled(x))
        torch.manual_seed(1)
        assert torch.equal(found[-1], model(x))
    assert float(found[0].detach().std(0).max()) == 0 < float(found[1].detach().std(0).min())


def test_the_divergence_reaches_the_gradients_of_weights_and_variances():
    """What autograd gives for loss + beta / N * KL."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    pruner, optimizer = start(
        model, examples=50, warm_up_epochs=4, optimizer=torch.optim.SGD(model.parameters(), 0.0)
    )
    pruner.update_epoch(3)  # beta is 3/4
    (wrapper,) = pruner.get_modules_wrapper()
    seen = {}
    optimizer.register_step_pre_hook(
        lambda *_: seen.update(w=model.weight.grad.clone(), v=wrapper.log_variance.grad.clone())
    )
    model.eval()  # without noise
    optimizer.zero_grad()
    (model(torch.ones(1, 4)).sum() + 0 * wrapper.log_variance.sum()).backward()
    optimizer.step()
    weight = model.weight.detach().clone().requires_grad_()
    variance = torch.full((3, 4), -10.0, requires_grad=True)
    total = F.linear(torch.ones(1, 4), weight).sum()
    (total + 0.75 / 50 * divergence(log_alpha(weight, variance)).sum()).backward()
    assert torch.allclose(seen["w"], weight.grad, atol=1e-5)
    assert torch.allclose(seen["v"], variance.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(6, 4), (6,)),
        (lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2, padding_mode="circular"), (4, 7, 7)),
        (lambda: nn.Conv1d(3, 5, 3, dilation=2), (3, 11)),
    ],
)
def test_the_noise_is_that_of_sampled_weights(layer, shape):
    """Mean and variance over many draws are those of drawing each weight."""
    torch.manual_seed(0)
    model = layer()
    start(model, rules=[{"op_types": [type(model).__name__]}])
    wrapper = next(m for m in model.modules() if hasattr(m, "log_variance"))
    with torch.no_grad():
        wrapper.log_variance.copy_(torch.randn_like(wrapper.log_variance) - 3)
        x = torch.randn(1, *shape)
        got = model.train()(x.expand(4000, *shape))
        twin, samples = layer(), []
        twin.bias.copy_(model.bias)
        for _ in range(4000):
            noise = torch.randn_like(model.weight) * (wrapper.log_variance / 2).exp()
            twin.weight.copy_(model.weight + noise)
            samples.append(twin(x)[0])
        expected = torch.stack(samples)
        assert torch.allclose(
            got.mean(0), expected.mean(0), atol=0.1 * float(expected.std(0).max())
        )
        assert torch.allclose(got.var(0), expected.var(0), rtol=0.15)
        model.eval()
        assert torch.equal(model(x), model(x))


def test_useless_inputs_go_and_the_digits_are_still_read():
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    pruner, optimizer = start(model, 30, 1300, warm_up_epochs=10)
    for epoch in range(34):
        pruner.update_epoch(epoch)
        for part in torch.randperm(1300).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model.train()(x[part]), y[part]).backward()
            optimizer.step()
    model = pruner.strip().eval()
    weights = torch.cat([model[0].weight.flatten(), model[2].weight.flatten()])
    assert float((weights == 0).float().mean()) > 0.6
    assert bool((model[0].weight[:, (x == 0).all(0)] == 0).all())  # pixels that are always empty
    assert float((model(x[1300:]).argmax(1) == y[1300:]).float().mean()) > 0.92


def test_a_share_and_a_threshold():
    torch.manual_seed(0)
    weight = nn.Linear(20, 10).weight.detach()
    for rule, count in (({"sparsity": 0.3}, 60), ({"total_sparsity": 0.3}, 60)):
        model = nn.Linear(20, 10)
        model.weight.data.copy_(weight)
        SparseVDPruner(model, [rule]).compress()
        assert int((model.weight == 0).sum()) == count
    model = nn.Linear(20, 10)
    model.weight.data.copy_(weight)
    SparseVDPruner(model, [{"threshold": -6.0}]).compress()
    # log alpha = -10 - log w² > -6  <=>  |w| < exp(-2)
    assert torch.equal(model.weight == 0, weight.abs() < math.exp(-2))


def test_it_resumes_exactly(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(64, 6)

    def run(model, pruner, optimizer, epochs):
        for epoch in epochs:
            torch.manual_seed(epoch)
            pruner.update_epoch(epoch)
            for part in x.split(16):
                optimizer.zero_grad()
                (model.train()(part) - part[:, :1]).square().mean().backward()
                optimizer.step()

    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    other = copy.deepcopy(model)
    pruner, optimizer = start(model, 6, 64)
    run(model, pruner, optimizer, range(4))
    pruner.state().save(tmp_path / "state")
    saved, optimized = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    run(model, pruner, optimizer, range(4, 8))
    second, its_optimizer = start(other, 6, 64)
    second.load_state(tmp_path / "state")
    other.load_state_dict(saved)
    its_optimizer.load_state_dict(optimized)
    run(other, second, its_optimizer, range(4, 8))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert (
        len(list(model.parameters())) == 4
    )  # once weights are dropped, variances are no parameters
    pruner.state().save(tmp_path / "last")
    third, _ = start(net := nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)), 6, 64)
    third.load_state(tmp_path / "last")
    net.load_state_dict(model.state_dict())
    assert len(list(net.parameters())) == 4 and torch.equal(net.eval()(x), model.eval()(x))
    pruner.strip()
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 4


@pytest.mark.parametrize(
    ("options", "rule", "words"),
    [
        ({"training_epochs": -1}, {}, "training_epochs: received -1"),
        ({"training_epochs": 3}, {}, "training_examples: received 0"),
        ({}, {"sparsity": 0.5, "threshold": 3.0}, "exclude each other"),
    ],
)
def test_what_makes_no_sense_is_refused(options, rule, words):
    with pytest.raises(ConfigError, match=words):
        SparseVDPruner(nn.Linear(4, 4), [rule], **options)


def test_layers_without_an_output_of_their_own_are_refused():
    with pytest.raises(ConfigError, match="never called as a layer"):
        start(nn.MultiheadAttention(4, 2), rules=[{"op_names": ["out_proj"]}])
    with pytest.raises(ConfigError, match="not a Conv1d"):
        start(nn.Embedding(4, 4), rules=[{"op_types": ["Embedding"]}])


def test_the_noise_needs_an_optimizer_when_training_begins():
    pruner = SparseVDPruner(nn.Linear(4, 4), [{}], training_epochs=3, training_examples=9)
    pruner.compress()
    with pytest.raises(StageError, match="works through the optimizer"):
        pruner.update_epoch(0)


@pytest.mark.parametrize("is_compressed_first", [True, False])
def test_a_finished_run_resumes_in_either_order(is_compressed_first):
    def build():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        options = {"training_epochs": 1, "training_examples": 10}
        return model, optimizer, SparseVDPruner(model, [{"sparsity": 0.5}], optimizer, **options)

    model, optimizer, pruner = build()
    pruner.compress()
    pruner.update_epoch(0)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    pruner.update_epoch(1)
    state, its_state = pruner.state(), optimizer.state_dict()
    other, its_optimizer, second = build()
    if is_compressed_first:
        second.compress()
    second.load_state(state)
    second.compress()
    its_optimizer.load_state_dict(its_state)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.weight, model.weight) and (other.weight == 0).sum() == 8
    assert len(list(other.parameters())) == 2
    second.strip()
    assert len(its_optimizer.param_groups[0]["params"]) == 2


@pytest.mark.parametrize("threshold", [float("nan"), float("inf")])
def test_a_threshold_is_a_finite_number(threshold):
    with pytest.raises(ConfigError, match="threshold"):
        SparseVDPruner(nn.Linear(6, 8), [{"threshold": threshold}])


@pytest.mark.parametrize("distils_first", [True, False])
def test_a_distiller_compares_what_the_next_layer_receives(distils_first):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    distiller = Distiller(model, [{"op_names": ["0"], "loss": "mse"}], optimizer)
    options = {"training_epochs": 2, "training_examples": 10}
    pruner = SparseVDPruner(model, [{"op_names": ["0"], "threshold": 3.0}], optimizer, **options)
    for compressor in (distiller, pruner) if distils_first else (pruner, distiller):
        compressor.compress()
    pruner.get_modules_wrapper()[0].log_variance.data.fill_(0.0)
    inputs, seen = torch.randn(4, 6), []
    model[1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(inputs)
    own = (seen[0] - inputs @ model[0].weight.T - model[0].bias).square().mean()
    torch.testing.assert_close(distiller.loss(), own, rtol=1e-4, atol=1e-6)
    assert own > 1


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(F.linear(x, self.first.weight, self.first.bias)))


@pytest.mark.parametrize("is_training", [True, False])
def test_noise_that_is_not_learned_is_refused(is_training):
    model = Functional().train(is_training)
    optimizer = torch.optim.Adam(model.parameters())
    options = {"training_epochs": 2, "training_examples": 10}
    pruner = SparseVDPruner(model, RULES, optimizer, **options)
    pruner.compress()
    pruner.update_epoch(0)
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    with pytest.raises(StageError, match="layer 'first': its noise was not learned.*model.train"):
        pruner.update_epoch(1)
