"""ADMMPruner: against the method written out in plain PyTorch."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from lilliput.errors import AlgorithmError, ConfigError, StageError
from lilliput.torch import ADMMPruner

RULE = {"op_types": ["Linear"], "sparsity": 0.8, "rho": 0.02}


def data():
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[:400], dtype=torch.float32) / 16, torch.tensor(labels[:400])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.2)


def train_epoch(model, optimizer, epoch, pull=lambda: None):
    x, y = data()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(epoch))
    for part in order.split(50):
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        pull()
        optimizer.step()


def run(model, pruner, optimizer, epochs):
    for epoch in epochs:
        pruner.update_epoch(epoch)
        train_epoch(model, optimizer, epoch)


def project(value, sparsity):
    order = value.abs().flatten().argsort(stable=True)
    mask = torch.ones(value.numel())
    mask[order[: round(value.numel() * sparsity)]] = 0
    return value * mask.view_as(value)


def test_it_is_the_papers_procedure():
    model = net()
    optimizer = sgd(model)
    pruner = ADMMPruner(model, [RULE], optimizer, iterations=4, epochs_per_iteration=2)
    pruner.compress()
    run(model, pruner, optimizer, range(8))

    plain = net()
    weights = [plain[0].weight, plain[2].weight]
    targets = [project(w.detach(), 0.8) for w in weights]
    duals = [torch.zeros_like(w) for w in weights]

    def pull():
        for w, z, u in zip(weights, targets, duals, strict=True):
            w.grad += 0.02 * (w.detach() - z + u)

    theirs = sgd(plain)
    for epoch in range(8):
        if epoch and epoch % 2 == 0:
            for i, w in enumerate(weights):
                targets[i] = project(w.detach() + duals[i], 0.8)
                duals[i] = duals[i] + w.detach() - targets[i]
        train_epoch(plain, theirs, epoch, pull)
    for ours, reference in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, reference, atol=1e-5)
    pruner.update_epoch(8)
    for layer, w in zip((model[0], model[2]), weights, strict=True):
        assert torch.allclose(layer.weight, project(w.detach(), 0.8), atol=1e-5)
    assert [int((layer.weight == 0).sum()) for layer in (model[0], model[2])] == [1229, 192]


def test_pruning_costs_less_after_it():
    """The control trains for as long without a pull worth the name."""
    trained = net()
    optimizer = sgd(trained)
    for epoch in range(15):
        train_epoch(trained, optimizer, 100 + epoch)

    def pruned(rho):
        model = copy.deepcopy(trained)
        optimizer = sgd(model)
        pruner = ADMMPruner(model, [{**RULE, "rho": rho}], optimizer, iterations=15)
        pruner.compress()
        run(model, pruner, optimizer, range(15))
        pruner.update_epoch(15)
        x, y = data()
        outputs = model(x).detach()
        return F.cross_entropy(outputs, y).item(), float((outputs.argmax(1) == y).float().mean())

    (loss, accuracy), (its_loss, its_accuracy) = pruned(0.2), pruned(1e-9)
    assert loss < 0.6 * its_loss and accuracy > 0.95 > 0.9 > its_accuracy


def test_channels_are_pulled_as_a_whole():
    model = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    optimizer = sgd(model)
    pruner = ADMMPruner(
        model,
        [{"op_names": ["0"], "sparsity": 0.5, "rho": 0.1}],
        optimizer,
        "l1",
        example_inputs=torch.zeros(1, 64),
        iterations=3,
    )
    pruner.compress()
    (wrapper,) = pruner.get_modules_wrapper()
    before = model[0].weight.detach().clone()
    rows = (wrapper.sparse_target == 0).all(1)
    assert int(rows.sum()) == 12
    assert set(rows.nonzero().flatten().tolist()) == set(
        before.abs().sum(1).argsort()[:12].tolist()
    )
    assert torch.equal(model[0].weight, before)  # the projection has left the weights as they are
    run(model, pruner, optimizer, range(4))
    gone = (model[0].weight == 0).all(1)
    assert int(gone.sum()) == 12 and bool((model[2].weight[:, gone] == 0).all())


def test_it_resumes_exactly(tmp_path):
    model = net()
    optimizer = sgd(model)
    pruner = ADMMPruner(model, [RULE], optimizer, iterations=4)
    pruner.compress()
    run(model, pruner, optimizer, range(3))
    pruner.state().save(tmp_path / "state")
    saved = copy.deepcopy(model.state_dict())
    run(model, pruner, optimizer, range(3, 6))
    other = net()
    its_optimizer = sgd(other)
    second = ADMMPruner(other, [RULE], its_optimizer, iterations=4)
    second.compress()
    second.load_state(tmp_path / "state")
    other.load_state_dict(saved)
    run(other, second, its_optimizer, range(3, 6))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    pruner.strip()
    assert list(model.state_dict()) == list(net().state_dict())


@pytest.mark.parametrize(
    ("options", "rule", "words"),
    [
        ({"iterations": -1}, RULE, "iterations: received -1"),
        ({"epochs_per_iteration": 0}, RULE, "epochs_per_iteration: received 0"),
        ({"iterations": 0, "pruning_algorithm": "taylorfo"}, RULE, "uses more than weights"),
        ({"iterations": 0, "pruning_algorithm": "fisher"}, RULE, "uses more than weights"),
        ({"iterations": 0, "pruning_algorithm": "second_order"}, RULE, "prunes once"),
        ({"iterations": 0}, {**RULE, "rho": 0.0}, "rho"),
        ({"iterations": 0}, {"op_types": ["Linear"]}, "'sparsity' is missing"),
    ],
)
def test_what_makes_no_sense_is_refused(options, rule, words):
    with pytest.raises(ConfigError, match=words):
        ADMMPruner(net(), [rule], **options)


def test_masks_that_have_yet_to_come_are_not_exported(tmp_path):
    model = net()
    pruner = ADMMPruner(model, [RULE], sgd(model), iterations=4)
    pruner.compress()
    with pytest.raises(StageError, match="4 epochs with the penalty are missing"):
        pruner.export_model(str(tmp_path / "model.safetensors"))


def test_the_penalty_needs_an_optimizer_when_training_begins():
    pruner = ADMMPruner(net(), [RULE])
    model = pruner.compress()
    for follow in (pruner.step, lambda: pruner.update_epoch(0)):
        with pytest.raises(StageError, match="works through the optimizer"):
            follow()
    pruner.bind_optimizer(sgd(model))  # as a recipe does
    pruner.update_epoch(0)


def test_a_refused_compress_leaves_the_model_and_the_next_one_has_targets():
    model = net()
    good = model[0].weight[0, 0].item()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    pruner = ADMMPruner(model, [RULE], sgd(model))
    with pytest.raises(AlgorithmError, match="NaN"):
        pruner.compress()
    assert not pruner.is_wrapped and list(model.state_dict()) == list(net().state_dict())
    with torch.no_grad():
        model[0].weight[0, 0] = good
    pruner.compress()
    for wrapper, layer in zip(pruner.get_modules_wrapper(), (net()[0], net()[2]), strict=True):
        assert torch.equal(wrapper.sparse_target, project(layer.weight.detach(), 0.8))


def test_a_loaded_target_stays_at_compress():
    model = net()
    optimizer = sgd(model)
    pruner = ADMMPruner(model, [RULE], optimizer, epochs_per_iteration=2)
    pruner.compress()
    run(model, pruner, optimizer, range(1))
    another = net()
    with torch.no_grad():  # the trained weights, whose own target is another one
        for held, trained in zip(another.parameters(), model.parameters(), strict=True):
            held.copy_(trained)
    other = ADMMPruner(another, [RULE], sgd(another), epochs_per_iteration=2)
    other.load_state(pruner.state())
    other.compress()
    for mine, its in zip(other.get_modules_wrapper(), pruner.get_modules_wrapper(), strict=True):
        assert torch.equal(mine.sparse_target, its.sparse_target)
        assert not torch.equal(its.sparse_target, project(its.weight.detach(), 0.8))


@pytest.mark.parametrize("is_bound_later", [True, False])
def test_layers_of_another_optimizer_are_refused(is_bound_later):
    """A penalty on their gradients would come after their optimizer's step."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    pruner = ADMMPruner(
        model, [{"op_types": ["Linear"], "sparsity": 0.5}], None if is_bound_later else optimizer
    )
    with pytest.raises(ConfigError, match="which does not train layer '1'.*exclude the layer"):
        pruner.compress()
        pruner.bind_optimizer(optimizer)
    assert pruner.is_wrapped == is_bound_later
    model[1].weight.requires_grad_(False)
    pruner.bind_optimizer(optimizer)
    pruner.compress()


def test_skipped_epochs_are_one_update_of_the_target():
    duals = []
    for epochs in ((0, 1), (0, 4)):
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        pruner = ADMMPruner(model, [{"sparsity": 0.5}], optimizer, iterations=10)
        pruner.compress()
        for epoch in epochs:
            pruner.update_epoch(epoch)
        duals.append(pruner.get_modules_wrapper()[0].dual.clone())
    assert duals[0].abs().max() > 0
    assert torch.equal(*duals)
