"""Every registered algorithm passes every check of the public battery."""

from functools import partial

import pytest

from lilliput.algorithms import list_pruners, list_quantizers, pruner, quantizer
from lilliput.frameworks.torch.lab import loss_of
from lilliput.testing import Subject, check_together, pruner_checks, quantizer_checks
from lilliput.torch import (
    ActivationAPoZRankPruner,
    ActivationMeanRankPruner,
    ADMMPruner,
    AGPPruner,
    FisherPruner,
    L1NormPruner,
    LeastSquaresPruner,
    LotteryTicketPruner,
    MovementPruner,
    RigLPruner,
    SecondOrderPruner,
    SlimPruner,
    STRPruner,
    TaylorFOWeightPruner,
)


# How to build those that prune after they have seen data, by registered name.
def calibrated(cls, **kwargs):
    def make(model, rules, optimizer, **inputs):
        pruner = cls(model, rules, optimizer, **inputs)
        pruner.calibrate([model.make_input()], **kwargs)
        return pruner

    return make


def after_a_round(model, rules, optimizer):
    """Return a pruner whose only round of training is over."""
    rules = [{"prune_iterations": 1, **rule} if isinstance(rule, dict) else rule for rule in rules]
    pruner = LotteryTicketPruner(model, rules, optimizer)
    pruner.update_epoch(1)
    return pruner


def followed(make):
    return lambda model, rules, optimizer: make(
        model, rules, optimizer, example_inputs=model.make_input()
    )


MAKERS = {
    "admm": lambda *given: ADMMPruner(*given, iterations=0),
    "apoz": calibrated(ActivationAPoZRankPruner),
    "fisher": calibrated(FisherPruner, loss=loss_of),
    "least_squares": followed(calibrated(LeastSquaresPruner)),
    "lottery_ticket": after_a_round,
    "mean_activation": calibrated(ActivationMeanRankPruner),
    "movement": partial(MovementPruner, cool_down_beginning_step=3),
    # Connections move in every second step.
    "rigl": partial(RigLPruner, training_steps=100, update_every=2),
    "second_order": calibrated(SecondOrderPruner),
    "taylorfo": calibrated(TaylorFOWeightPruner, loss=loss_of),
}

# Channels are followed through the model: their companions must keep every promise too.
FOLLOWED = {
    "l1": Subject(L1NormPruner, make=followed(L1NormPruner)),
    "slim": Subject(SlimPruner, make=followed(SlimPruner)),
    "taylorfo": Subject(TaylorFOWeightPruner, make=followed(MAKERS["taylorfo"])),
    "agp of l1": Subject(AGPPruner, make=followed(partial(AGPPruner, pruning_algorithm="l1"))),
}

# All but a line of each is that of another one.
SAME = {"l2", "fpgm", "lamp", "linear", "sensitivity", "mean_activation", "lsq_plus"}
SAME |= {"random", "random_channels"}
OWN = {
    "check_determinism",
    "check_exact_sparsity",
    "check_masks",
    "check_state_round_trip",
}
# What is due to the engine, and takes longest: checked by default on those that ask most of it.
ENGINE = {
    "check_compile",
    "check_deepcopy",
    "check_strip_keeps_outputs",
    "check_strip_restores_model",
}
THOROUGH = {"level", "agp of l1", "slim", "qat", "lsq", "dorefa"}
# Settings for algorithms whose defaults do not prune at once, by registered name.
SETTINGS: dict[str, dict[str, object]] = {
    # All activations at one bit stop every gradient in networks this small.
    "bnn": {"quant_types": ["weight"]},
}


def is_slow(name, check):
    if name in SAME:
        return check not in OWN
    return check in ENGINE and name not in THOROUGH


def cases(names, checks):
    return [
        pytest.param(
            name,
            check,
            id=f"{name}-{check.__name__.removeprefix('check_')}",
            marks=[pytest.mark.slow] if is_slow(name, check.__name__) else [],
        )
        for name in names
        for check in checks
    ]


@pytest.mark.parametrize(("name", "check"), cases(list_pruners(), pruner_checks()))
def test_pruner_conforms(name, check):
    check(Subject(pruner(name), SETTINGS.get(name), MAKERS.get(name)))


@pytest.mark.parametrize(("name", "check"), cases(FOLLOWED, pruner_checks()))
def test_pruner_of_channels_conforms(name, check):
    check(FOLLOWED[name])


@pytest.mark.parametrize(("name", "check"), cases(list_quantizers(), quantizer_checks()))
def test_quantizer_conforms(name, check):
    check(Subject(quantizer(name), SETTINGS.get(name)))


# -- a pruner, a quantizer and a distiller on one model ------------------------------------------------


def together(name):
    """Return a pruner as it is when it prunes within two steps of training."""
    made = {
        "soft agp": (AGPPruner, partial(AGPPruner, soft=True, hard_epoch=2)),
        "str": (STRPruner, partial(STRPruner, start=-3.0)),  # thresholds of 0.05
    }
    if name in FOLLOWED:
        return FOLLOWED[name]
    cls, make = made.get(name) or (pruner(name), MAKERS.get(name))
    return Subject(cls, make=make)


TOGETHER = list(dict.fromkeys([*list_pruners(), "soft agp", *FOLLOWED]))
# Each pruner once, with all quantizers in turn; the other pairs are slow.
PAIRS = [
    pytest.param(
        first,
        second,
        marks=[] if i % len(list_quantizers()) == j else [pytest.mark.slow],
    )
    for i, first in enumerate(TOGETHER)
    for j, second in enumerate(list_quantizers())
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_pruner_quantizer_and_distiller_work_together(first, second):
    assert check_together(together(first), Subject(quantizer(second), SETTINGS.get(second))) == ""
