"""Rules with choices: what becomes a decision, and what is refused."""

import pytest
import torch
from digits_search import Net
from torch import nn

from lilliput.errors import ConfigError
from lilliput.search.space import Space

X = torch.zeros(2, 1, 8, 8)
EIGHT = {"choose": [0, 0.25, 0.5]}


def test_layers_whose_channels_go_together_are_one_decision():
    rules = [{"op_types": ["Conv2d", "Linear"], "sparsity": EIGHT}]
    found = [d.layers for d in Space(Net(), rules, X).decisions]
    assert found == [("stem", "outer"), ("inner",), ("down",)]


def test_the_last_rule_wins_and_a_plain_value_is_the_only_choice():
    rules = [
        {"op_types": ["Conv2d", "Linear"], "quant_bits": {"choose": [4, None, 8]}},
        {"op_names": ["head"], "quant_bits": 8, "quant_types": ["weight"]},
    ]
    space = Space(Net(), rules, X)
    assert [d.choices for d in space.decisions] == [(None, 8, 4)] * 4 + [(8,)]
    assert space.quantization((0, 1, 1, 2, 0)) == [
        {"op_names": ["inner", "outer"], "quant_bits": 8},
        {"op_names": ["down"], "quant_bits": 4},
        {"op_names": ["head"], "quant_types": ["weight"], "quant_bits": 8},
    ]


def test_a_rule_without_sparsity_protects_channels_from_earlier_rules():
    rules = [
        {"op_types": ["Conv2d"], "sparsity": EIGHT},
        {"op_names": ["stem"], "quant_bits": 8},
    ]
    found = [d.layers for d in Space(Net(), rules, X).decisions if d.key == "sparsity"]
    assert found == [("inner",), ("down",)]


def test_all_that_is_wrong_is_reported_at_once():
    rules = [
        {"op_types": ["Conv2d"], "sparsity": {"choose": [0, 25]}, "min_keep": 4},
        {"op_names": ["hed"], "quant_bits": {"choose": []}},
        {"op_types": ["Linear"], "quant_scheme": {"choose": ["affine"]}},
        "sparsity",
    ]
    with pytest.raises(ConfigError) as caught:
        Space(Net(), rules, X)
    text = str(caught.value)
    for part in (
        "rule 0 → sparsity (choice 25): expected a fraction in [0, 1). Did you mean 0.25?",
        "rule 0 → min_keep: unknown key. Did you mean 'min_kept'?",
        "rule 1 → quant_bits: received {'choose': []}",
        "rule 2 → quant_scheme: only sparsity and quant_bits can be a choice",
        "rule 2: it requests nothing",
        "rule 3: received 'sparsity', expected a dict of keys.",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"op_types": ["Conv2d"], "sparsity": 0.5}], "no value is a choice"),
        ([{"op_types": ["Conv3d"], "sparsity": EIGHT}], "matches no layer"),
        ([{"op_names": ["head"], "sparsity": EIGHT}], "the channels of 'head' cannot be removed"),
        ([{"op_types": ["Conv2d"], "sparsity": {"choose": [0.5, 0.5]}}], "names a value twice"),
        ([], "expected a list of rules"),
    ],
)
def test_choices_that_nothing_takes_are_refused(rules, message):
    with pytest.raises(ConfigError, match=message):
        Space(Net(), rules, X)


def test_coupled_layers_without_a_common_choice_are_refused():
    rules = [
        {"op_names": ["stem"], "sparsity": {"choose": [0.25, 0.5]}},
        {"op_names": ["outer"], "sparsity": {"choose": [0.75]}},
    ]
    with pytest.raises(
        ConfigError, match=r"'stem', 'outer' are removed together.*no sparsity above 0 in common"
    ):
        Space(Net(), rules, X)


def test_a_pruner_of_single_weights_is_refused():
    rules = [{"op_types": ["Linear"], "sparsity": EIGHT}]
    with pytest.raises(ConfigError, match="removes single weights"):
        Space(nn.Sequential(nn.Linear(4, 4)), rules, torch.zeros(2, 4), pruner="level")


def test_a_sparsity_of_nothing_but_0_is_accepted_where_nothing_can_be_removed():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    rules = [
        {"op_types": ["Linear"], "sparsity": {"choose": [0, 0.5]}},
        {"op_names": ["2"], "sparsity": 0, "quant_bits": 8},
    ]
    space = Space(model, rules, torch.zeros(2, 4))
    assert [str(d) for d in space.decisions] == ["sparsity of 0: 0 or 0.5", "quant_bits of 2: 8"]
    rules[1]["sparsity"] = 0.5
    with pytest.raises(ConfigError, match=r"rule 1 .*channels of '2' cannot be removed"):
        Space(model, rules, torch.zeros(2, 4))
