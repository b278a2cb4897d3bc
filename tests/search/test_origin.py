"""What a search depends on: a folder whose results come from other data is noticed."""

import functools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lilliput.errors import StateError
from lilliput.search.origin import digest_of_function
from lilliput.torch import Search

ONES = torch.ones(3)


def metric(model, wanted=None):
    return float(model(ONES).sum())


def in_closure(wanted, seen=None):
    seen = [] if seen is None else seen

    def evaluate(model):
        seen.append(1.0)
        return float((model == wanted[0]).sum())

    return evaluate


def in_default(wanted):
    def evaluate(model, wanted=wanted):
        return float((model == wanted).sum())

    return evaluate


class Metric:
    def __init__(self, wanted):
        self.wanted, self.calls = wanted, 0

    def __call__(self, model):
        return float((model == self.wanted).sum())

    def run(self, model):
        return self(model)


MAKERS = {
    "partial": lambda x: functools.partial(metric, wanted=x),
    "closure": lambda x: in_closure([x]),
    "default": in_default,
    "object": Metric,
    "method": lambda x: Metric(x).run,
    "function in a partial": lambda x: functools.partial(in_closure([x])),
}


@pytest.mark.parametrize("name", MAKERS)
def test_arrays_that_a_function_holds_are_part_of_it(name):
    make = MAKERS[name]
    assert digest_of_function(make(ONES)) == digest_of_function(make(torch.ones(3)))
    assert digest_of_function(make(ONES)) != digest_of_function(make(2 * ONES))


def test_arrays_of_the_module_are_part_of_a_function_also_through_another(monkeypatch):
    here = sys.modules[__name__]
    before = [digest_of_function(x) for x in (metric, lambda model: metric(model))]
    monkeypatch.setattr(here, "ONES", torch.zeros(3))
    after = [digest_of_function(x) for x in (metric, lambda model: metric(model))]
    assert before[0] != after[0] and before[1] != after[1]


def test_counting_calls_does_not_change_a_function():
    calls = []
    evaluate = in_closure([ONES], calls)
    before = digest_of_function(evaluate)
    calls.append(1.0)
    assert digest_of_function(evaluate) == before


@pytest.mark.parametrize(
    "odd",
    [
        torch.eye(3).to_sparse(),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.bfloat16),
        np.array([object()]),
        torch.Tensor,
        SimpleNamespace(x=1),
    ],
)
def test_values_that_cannot_be_read_do_not_matter(odd):
    assert digest_of_function(in_closure([odd])) == digest_of_function(in_closure([odd]))


def test_a_search_is_not_resumed_with_other_labels(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x = torch.randn(16, 4)

    def run(labels):
        rules = [{"op_types": ["Linear"], "sparsity": {"choose": [0, 0.5]}}]
        evaluate = lambda model: float((model(x).argmax(1) == labels).float().mean())  # noqa: E731
        given = {"evaluate": evaluate, "data": [x], "example_inputs": x, "trials": 2}
        return Search(model.eval(), rules, budget={"macs": 0.8}, **given).run(tmp_path)

    labels = model(x).argmax(1)
    run(labels)
    assert run(labels).receipt.before.metric == 1.0
    with pytest.raises(StateError, match="different evaluate"):
        run((labels + 1) % 3)
