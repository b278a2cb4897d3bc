"""Arguments that cannot be meant are refused by all constructors alike."""

import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.core.checks import checked_flag, checked_number
from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError, LilliputError
from lilliput.registry import pruners, quantizers
from lilliput.torch import Distiller, L1NormPruner, SensitivityAnalysis, SlimPruner

# What the engine gives, what takes anything, and what others have to be given with.
OURS = {"self", "model", "config_list", "optimizer", "example_inputs", "groups"}
FREE = {"masker_type", "options", "evaluator", "finetuner", "sparsity_proportion_calc"}
ALONG = {
    "MovementPruner": {"cool_down_beginning_step": 10},
    "RigLPruner": {"training_steps": 10},
    "SparseVDPruner": {"training_examples": 10},
}
# Never a number, a name, a flag or a dict that an argument could take.
NEGATIVE = -1.5
WRONG = (
    "no such",
    [1],
    NEGATIVE,
    math.nan,
    math.inf,
    1j,
    b"1",
    object(),
    np.ones(2),
    {"no": "such"},
)


def arguments():
    for cls in (*pruners, *quantizers):
        is_own = cls.__module__.startswith(("lilliput.pruning", "lilliput.quantization"))
        if is_own and issubclass(cls, Compressor):
            parameters = inspect.signature(cls.__init__).parameters
            for name in sorted(parameters.keys() - OURS - FREE):
                yield pytest.param(cls, name, parameters, id=f"{cls.__name__}-{name}")


@pytest.mark.parametrize(("cls", "name", "parameters"), list(arguments()))
def test_each_constructor_names_the_argument_that_cannot_be_meant(cls, name, parameters):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4))
    keys = cls.rule.model_fields
    rule = {"final_sparsity": 0.5, "end_epoch": 2} if "final_sparsity" in keys else {}
    rule = {"sparsity": 0.5} if not rule and "sparsity" in keys else rule
    given = {"example_inputs": torch.randn(2, 3, 3, 3)} if "example_inputs" in parameters else {}
    is_negative_fine = (cls.__name__, name) == ("STRPruner", "start")
    is_number = type(parameters[name].default) in (int, float)
    for wrong in (*WRONG, *([True] if is_number else [])):
        if wrong is NEGATIVE and is_negative_fine:
            continue
        asked = {**given, **ALONG.get(cls.__name__, {}), name: wrong}
        with pytest.raises(LilliputError) as caught:
            cls(model, [rule], **asked)
        named = name.removeprefix("is_") in str(caught.value)
        assert named or "no pruner is called" in str(caught.value), (wrong, str(caught.value))


def test_the_scale_of_slim_pruning_is_a_number():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    with pytest.raises(ConfigError, match="scale: received 'a', expected 0 or more"):
        SlimPruner(model, [{"total_sparsity": 0.5}], scale="a")
    pruner = SlimPruner(model, [{"total_sparsity": 0.5}], scale=np.float32(0.5))
    assert pruner.masker.scale == 0.5


@pytest.mark.parametrize("wrong", WRONG)
def test_groups_and_teachers_are_refused_by_name(wrong):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    with pytest.raises(ConfigError, match="groups: received"):
        L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], groups=wrong)
    with pytest.raises(LilliputError, match="teacher: received"):
        Distiller(model, teacher=wrong)


@pytest.mark.parametrize("wrong", ["0.5", 0.5, [], ["a"], [math.nan], [0.5, 1.0]])
def test_the_sparsities_of_an_analysis_are_numbers(wrong):
    with pytest.raises(ConfigError, match="sparsities"):
        SensitivityAnalysis(nn.Sequential(nn.Linear(4, 4)), lambda model: 1.0, wrong)


def test_numbers_and_flags_of_all_kinds():
    assert checked_number("x", np.float64(2), "a number") == 2.0
    assert checked_flag("x", False) is False
    for wrong in (10**400, True, None, "2", math.inf, np.bool_(True)):
        with pytest.raises(ConfigError, match="x: received .*, expected a number"):
            checked_number("x", wrong, "a number")
    for wrong in (0, 1, "yes", None):
        with pytest.raises(ConfigError, match="expected True or False"):
            checked_flag("x", wrong)
