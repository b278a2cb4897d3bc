"""What an optimizer starts with is found out without leaving a trace in it, or anywhere else."""

import inspect

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from lilliput.frameworks.torch import first_state
from lilliput.frameworks.torch.first_state import UnknownStateError, first_values


class Counting(torch.optim.Optimizer):
    """Counts its steps in a tensor of the group, and starts its sums with another number than zero."""

    def __init__(self, params, lr=0.1, first=0.5):
        super().__init__(params, {"lr": lr, "first": first, "steps": torch.zeros(())})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if "sum" not in self.state[p]:
                    self.state[p]["sum"] = torch.full_like(p, group["first"])


class Forwarding(torch.optim.Adagrad):
    """Shares everything with the optimizer inside, as the wrappers of training libraries do."""

    def __init__(self, optimizer):
        self.__dict__ = dict(vars(optimizer))
        self.inside = optimizer


def test_tensors_among_the_settings_stay():
    weight = nn.Parameter(torch.randn(4, 3))
    optimizer = Counting([weight], first=0.25)
    assert first_values(optimizer, weight) == {"sum": 0.25}
    assert optimizer.param_groups[0]["steps"] == 0 and not optimizer.state


def test_hooks_of_all_optimizers_do_not_see_it():
    weight = nn.Parameter(torch.randn(4, 3))
    optimizer, seen = Counting([weight]), []
    handle = register_optimizer_step_post_hook(lambda *given: seen.append(given))
    try:
        first_values(optimizer, weight)
    finally:
        handle.remove()
    assert not seen


def test_a_wrapper_that_shares_its_state_starts_like_the_optimizer_inside():
    weight = nn.Parameter(torch.randn(4, 3))
    inside = torch.optim.Adagrad([weight], initial_accumulator_value=0.75)
    assert first_values(Forwarding(inside), weight) == {"sum": 0.75}


def test_named_parameters_are_understood():
    layer = nn.Linear(3, 4)
    optimizer = Counting(layer.named_parameters(), first=0.25)
    assert first_values(optimizer, layer.weight) == {"sum": 0.25}


class Forgetful(torch.optim.SGD):
    """Keeps a number that it starts with nowhere but in its state."""

    def __init__(self, params, lr=0.1, start=0.0, is_verbose=False):
        super().__init__(params, lr=lr)
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p]["sum"] = torch.full_like(p, start)


def test_a_number_that_is_not_among_the_settings_is_not_guessed():
    weight = nn.Parameter(torch.randn(4, 3))
    with pytest.raises(UnknownStateError, match="'start' is not among its settings"):
        first_values(Forgetful([weight], start=0.5), weight)


class Chatty(torch.optim.SGD):
    """Takes a flag that it does not keep."""

    def __init__(self, params, lr=0.1, is_verbose=False):
        super().__init__(params, lr=lr, momentum=0.9)


def test_a_flag_that_is_not_among_the_settings_does_not_matter_for_zeros():
    weight = nn.Parameter(torch.randn(4, 3))
    assert first_values(Chatty([weight]), weight) == {"momentum_buffer": 0.0}


class OfModel(torch.optim.Rprop):
    """Is made from a model, not from its parameters, and otherwise torch's."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.02)


class OfModelWithStep(OfModel):
    """Also steps in its own way."""

    def step(self, closure=None):
        return super().step(closure)


def test_an_optimizer_with_a_step_of_torch_starts_like_that_of_torch():
    layer = nn.Linear(3, 4)
    assert first_values(OfModel(layer), layer.weight) == {"step_size": 0.02}
    with pytest.raises(UnknownStateError, match="parameters"):
        first_values(OfModelWithStep(layer), layer.weight)


CLASSES = [x for x in vars(torch.optim).values() if inspect.isclass(x)]
OTHERS = ("Optimizer", "LBFGS", "SparseAdam")  # without a step on dense gradients and no closure
KINDS = [x for x in CLASSES if issubclass(x, torch.optim.Optimizer) and x.__name__ not in OTHERS]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_the_optimizers_of_torch_start_with_is_what_they_tell(kind, monkeypatch):
    weight = nn.Parameter(torch.randn(4, 3))
    optimizer = kind([weight])
    known = {name: value for name, value in first_values(optimizer, weight).items() if value}
    monkeypatch.setattr(first_state, "_is_of_torch", lambda code: False)
    asked = {name: value for name, value in first_values(optimizer, weight).items() if value}
    assert known == pytest.approx(asked)
