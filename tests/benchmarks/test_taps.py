"""The layers that pass over zeros compute what torch's do, and learn what torch's learn."""

import copy
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from lilliput.torch import LevelPruner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from papers.lenets import lenet_5, lenet_300_100
from papers.taps import Pool, fast

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
NAMES = ["0", "2", "5", "7"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LILLIPUT_DATA", str(tmp_path_factory.getbasetemp() / "taps"))


def sparse(kept):
    torch.manual_seed(0)
    model = lenet_5()
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.ndim > 1):
            weight.mul_(torch.rand_like(weight) < kept)
    return model


@needs_compiler
@pytest.mark.parametrize("kept", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("images", [10, 64])
def test_answers_and_gradients_are_those_of_torch(kept, images):
    plain = sparse(kept)
    other = fast(copy.deepcopy(plain))
    x, y = torch.randn(images, 1, 28, 28), torch.arange(images) % 10
    answers = plain(x), other(x)
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
    for answer in answers:
        F.cross_entropy(answer, y).backward()
    for (name, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        wanted = one.grad * (one != 0) if one.ndim > 1 else one.grad
        torch.testing.assert_close(two.grad, wanted, rtol=1e-3, atol=1e-5, msg=name)


@needs_compiler
def test_training_with_masks_is_that_of_torch():
    torch.manual_seed(0)
    x, y = torch.randn(64, 1, 28, 28), torch.arange(64) % 10
    found = []
    for make in (lambda model: model, fast):
        model = make(sparse(1.0))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        pruner = LevelPruner(model, [{"op_names": NAMES, "sparsity": 0.9}], optimizer)
        pruner.compress()
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        found.append(pruner.strip().state_dict())
    torch.testing.assert_close(*map(dict, found), rtol=1e-3, atol=1e-5)


@needs_compiler
def test_of_equal_values_the_first_gets_the_gradient_as_in_torch():
    x = torch.randint(0, 3, (2, 3, 8, 4)).float()  # images, channels, rows, columns
    plain, other = x.clone().requires_grad_(), x.permute(1, 2, 3, 0).contiguous().requires_grad_()
    F.max_pool2d(plain, 2).square().sum().backward()
    Pool.apply(other).square().sum().backward()
    torch.testing.assert_close(other.grad.permute(3, 0, 1, 2), plain.grad)


def test_a_network_without_convolutions_and_a_machine_without_compiler_keep_theirs(monkeypatch):
    model = lenet_300_100()
    assert fast(model) is model
    monkeypatch.setattr(shutil, "which", lambda name: None)
    model = lenet_5()
    assert fast(model) is model
