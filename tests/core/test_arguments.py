"""Constructors that pass arguments on show them all."""

import inspect

import pytest
import torch

from lilliput.core.compressor import Compressor
from lilliput.recipes.arguments import arguments_of
from lilliput.registry import pruners, quantizers
from lilliput.torch import L1NormPruner, PTQQuantizer, RandomPruner, SlimPruner

HEAD = ["model", "config_list", "optimizer"]


@pytest.mark.parametrize("cls", [*pruners, *quantizers], ids=lambda cls: cls.__name__)
def test_the_signature_of_each_algorithm_names_all_arguments(cls):
    if not issubclass(cls, Compressor) or cls.__module__.startswith("lilliput.compat"):
        pytest.skip("not an algorithm of Lilliput's own")
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    assert [parameter.name for parameter in parameters][:3] == HEAD
    assert [name for name in arguments_of(cls) if name != "self"] == [x.name for x in parameters]
    # Editors read the source, which the decorator does not change.
    written = inspect.signature(inspect.unwrap(cls.__init__)).parameters.values()
    assert not any(x.kind is inspect.Parameter.VAR_POSITIONAL for x in written)


def test_what_is_passed_on_arrives_by_position_and_by_name():
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    rules = [{"sparsity": 0.5}]
    by_position = RandomPruner(model, rules, None, x, seed=3)
    by_name = RandomPruner(model=model, config_list=rules, example_inputs=x, seed=3)
    for pruner in (by_position, by_name):
        assert pruner.bound_model is model
        assert pruner.example_inputs is x
        assert pruner.masker.seed == 3


def test_what_the_constructor_sets_itself_is_not_shown():
    assert "options" not in inspect.signature(RandomPruner).parameters
    assert "options" in inspect.signature(L1NormPruner).parameters


@pytest.mark.parametrize(
    ("cls", "args", "others"),
    [
        (PTQQuantizer, (), {"quant_start_step": 3}),
        (PTQQuantizer, (None, None, None, None, 3), {}),
        (SlimPruner, (), {"masker_type": None}),
        (RandomPruner, (), {"options": {}}),
    ],
)
def test_what_is_not_in_the_signature_is_refused(cls, args, others):
    with pytest.raises(TypeError):
        cls(*args, **others)
