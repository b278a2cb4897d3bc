"""NNI's internal classes: each can be imported, and says how the same is written here."""

import importlib

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.imports.internals import IDEAS
from lilliput.compat.nni.imports.tables import INTERNAL, NAMES, PATHS
from lilliput.errors import StageError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.mark.parametrize("path", [path for path in PATHS if {*PATHS[path]} & {*INTERNAL}])
def test_importing_works_and_using_shows_a_small_class(path):
    module = importlib.import_module(path)
    for part in INTERNAL:
        for name in NAMES[part] if part in PATHS[path] else ():
            found = getattr(module, name)
            with pytest.raises(StageError, match=rf"(?s)^{name}.*{IDEAS[part][0]}"):
                found(1, two=2)
            with pytest.raises(StageError, match=rf"^{name} is a part"):
                type("Mine", (found,), {})


def shown(part):
    namespace = {}
    exec(IDEAS[part][1], namespace)
    return namespace


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8))


RULES = [{"op_types": ["Linear"], "sparsity": 0.5}]


def test_the_shown_collector_ranks_by_what_it_saw():
    model, x = linear(), torch.randn(5, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = model(x).detach().abs().mean(0)
    pruner = shown("data collectors")["LoudPruner"](model, RULES, optimizer)
    pruner.compress()
    model(x).sum().backward()
    optimizer.step()
    gone = (model[0].weight == 0).all(1).nonzero().flatten()
    assert torch.equal(gone, seen.argsort()[:4].sort().values)


def test_the_shown_metric_ranks_filters_by_it():
    model = linear()
    largest = model[0].weight.detach().abs().amax(1)
    shown("metrics calculators")["LargestPruner"](model, RULES).compress()
    gone = (model[0].weight == 0).all(1).nonzero().flatten()
    assert torch.equal(gone, largest.argsort()[:4].sort().values)


def test_the_shown_allocator_prunes_every_row_alike():
    model = linear()
    shown("sparsity allocators")["EveryRowPruner"](model, RULES).compress()
    assert (model[0].weight == 0).sum(1).tolist() == [3] * 8


def test_the_shown_schedule_is_followed():
    model = linear()
    rules = [{"op_types": ["Linear"], "final_sparsity": 0.5, "end_epoch": 3}]
    pruner = shown("schedulers")["HalvingPruner"](model, rules)
    pruner.compress()
    zeros = []
    for epoch in range(4):
        pruner.update_epoch(epoch)
        zeros.append(int((model[0].weight == 0).sum()))
    assert zeros == [0, 12, 18, 24]


def test_the_shown_pruner_reads_a_key_of_its_own():
    model = linear()
    before = model[0].weight.detach().clone()
    pruner = shown("target spaces")["ThresholdPruner"]
    pruner(model, [{"op_types": ["Linear"], "threshold": 0.2}]).compress()
    assert torch.equal(model[0].weight != 0, before.abs() > 0.2)
