import ast
import copy
import json
import logging
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import lilliput
from lilliput.config.parse import parse_rules
from lilliput.config.spec import PruneRule, QuantRule, ScheduledPruneRule
from lilliput.errors import ConfigError
from lilliput.pruning.channel_rule import ChannelRule
from lilliput.registry import REGISTRIES
from lilliput.torch import AGPPruner, DoReFaQuantizer, LevelPruner, NaiveQuantizer

ALGORITHMS = [LevelPruner, AGPPruner, NaiveQuantizer, DoReFaQuantizer]


def make_model():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Linear(4, 3))


def problems_of(config_list, algorithm=LevelPruner):
    with pytest.raises(ConfigError) as caught:
        algorithm(make_model(), config_list)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    "cls", [cls for registry in REGISTRIES for cls in registry], ids=lambda cls: cls.__name__
)
def test_the_rule_that_a_message_suggests_is_one_of_the_algorithm(cls):
    for config_list in ([], 5):
        (problem,) = parse_rules(config_list, cls.rule, cls.__name__).problems
        suggested = ast.literal_eval(re.search(r"such as (\[.*\])\.$", str(problem))[1])
        assert parse_rules(suggested, cls.rule, cls.__name__).problems == []


def test_all_faults_of_a_list_are_reported_together_in_the_order_of_the_rules():
    found = problems_of(
        [
            {"op_types": ["conv2d"], "sparsity": 80},
            {"op_name": ["3"], "sparsity": 0.1},
            {"op_names": ["fc"], "sparsity": 0.5},
            "Linear",
        ]
    )
    assert [line.partition(":")[0] for line in found] == [
        "rule 0 → sparsity",
        "rule 0 → op_types",
        "rule 1 → op_name",
        "rule 2 → op_names",
        "rule 3",
    ]
    assert "Did you mean 0.8? Received: 80." in found[0]
    assert "Did you mean 'Conv2d'? Layers here: " in found[1]
    assert "Did you mean 'op_names'?" in found[2]


def test_a_key_of_another_algorithm_is_recognised():
    (problem,) = problems_of([{"sparsity": 0.5, "end_epoch": 3}])
    assert "LevelPruner does not use it; AGPPruner or LinearPruner does." in problem


@pytest.mark.parametrize(
    "value", [1, 1.0, -0.1, float("nan"), float("inf"), "0.5", True, [0.5], {}]
)
def test_sparsity_outside_its_range_or_of_another_type_is_refused(value):
    (problem,) = problems_of([{"sparsity": value}])
    assert problem.startswith("rule 0 → sparsity")


@pytest.mark.parametrize("config", [None, 3, 0.5, b"x", [], {}, [None], [[]], object()])
def test_what_is_not_a_list_of_rules_is_refused(config):
    if config is None:
        config = [None]
    with pytest.raises(ConfigError):
        LevelPruner(make_model(), config)


def test_one_dict_one_rule_object_and_a_file_are_accepted(tmp_path):
    rule = {"op_types": ["Linear"], "sparsity": 0.5}
    path = tmp_path / "config.yaml"
    lilliput.write_rules([rule], path)
    for config in (rule, [rule], (rule,), [PruneRule(**rule)], str(path), path):
        assert [w.name for w in LevelPruner(make_model(), config).get_wrappers()] == ["3"]


def test_a_string_stands_for_a_list_of_one():
    (rule,) = parse_rules([{"op_types": "Linear", "op_names": "a"}]).rules
    assert (rule.op_types, rule.op_names) == (["Linear"], ["a"])


def test_quant_bits_must_cover_the_quant_types():
    config = [{"quant_types": ["weight", "output"], "quant_bits": {"weight": 8}}]
    parsed = parse_rules(config, QuantRule)
    assert "no entry for ['output']" in str(parsed.problems[0])


def test_scheduled_rules_need_a_target_above_their_start():
    assert "missing" in problems_of([{"end_epoch": 3}], AGPPruner)[0]
    below = problems_of([{"initial_sparsity": 0.6, "final_sparsity": 0.5}], AGPPruner)[0]
    assert "0.5 is below 'initial_sparsity' 0.6" in below


def test_old_spellings_are_translated_and_said_so(caplog):
    with caplog.at_level(logging.WARNING, logger="lilliput"):
        pruner = LevelPruner(make_model(), [{"sparsity": 0.8, "support_type": "default"}])
    assert pruner.get_wrappers()[0].config["op_types"] == ["default"]
    assert "'support_type'" in caplog.text and "'op_types'" in caplog.text


def test_the_schema_of_every_algorithm_is_json_and_names_its_keys():
    for name in [*lilliput.list_pruners(), *lilliput.list_quantizers()]:
        schema = json.loads(json.dumps(lilliput.config_schema(name)))
        assert schema["type"] == "array"
        assert {"op_types", "op_names", "exclude"} <= set(schema["items"]["properties"])
        assert schema["items"]["additionalProperties"] is False
    assert "final_sparsity" in lilliput.config_schema("agp")["items"]["properties"]
    assert "rank" in lilliput.config_schema("svd")["items"]["properties"]


KEYS = sorted(
    {key for name in lilliput.list_pruners() for key in lilliput.pruner(name).rule.model_fields}
    | set(QuantRule.model_fields)
    | {
        "support_type",
        "support_op",
        "prune",
        "q_bits",
        "sparse_ratio",
        "target_names",
        "op_names_re",
    }
    | {"exclude_op_names", "target_settings", "sparsity_per_layer", "op_partial_names", "nonsense"}
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 20)
    | st.floats(allow_nan=True)
    | st.floats(0, 1)
    | st.sampled_from(
        ["default", "Linear", "Conv2d", "0", "3", "re:[", "re:.*", "!3", "*", "weight", ""]
    )
    | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["weight", "input", "output", "x"]) | st.text(max_size=2),
            inner,
            max_size=2,
        )
    ),
    max_leaves=6,
)
RULES = st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5) | SCALARS, max_size=4)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(config=RULES, algorithm=st.sampled_from(ALGORITHMS))
def test_any_config_list_is_accepted_or_refused_with_a_config_error(config, algorithm):
    model = make_model()
    classes = [type(module) for module in model.modules()]
    weights = copy.deepcopy(model.state_dict())
    try:
        algorithm(model, config)
    except ConfigError as error:
        assert error.problems
    assert [type(module) for module in model.modules()] == classes
    assert list(model.state_dict()) == list(weights)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize("key", [*QuantRule.model_fields, *ScheduledPruneRule.model_fields])
def test_a_value_without_a_repr_is_refused_like_any_other(key):
    rule = QuantRule if key in QuantRule.model_fields else ScheduledPruneRule
    for value in (Broken(), [Broken()], {"weight": Broken()}, {Broken(): 1}):
        assert parse_rules([{key: value}], rule).problems
    assert parse_rules(Broken(), rule).problems and parse_rules([Broken()], rule).problems


HUGE = [float("nan"), float("inf"), -float("inf"), 10**400, -(10**400), True, 2**31, 1e300, "1e3"]


@pytest.mark.parametrize("value", HUGE, ids=lambda v: str(v)[:8])
@pytest.mark.parametrize(
    "rule",
    [ScheduledPruneRule, QuantRule, ChannelRule],
)
def test_numbers_that_no_key_can_mean_are_refused(rule, value):
    numeric = {
        *("sparsity", "total_sparsity", "max_macs", "max_params", "max_sparsity_per_layer"),
        *("min_kept", "round_to", "initial_sparsity", "final_sparsity", "start_epoch", "end_epoch"),
        *("frequency", "quant_bits", "group_size", "quant_start_step"),
    } & rule.model_fields.keys()
    assert numeric
    allowed = {("max_macs", 2**31), ("max_params", 2**31)}  # budgets of large models
    for key in numeric:
        if (key, value) not in allowed:
            assert parse_rules([{key: value}], rule).problems, key


@pytest.mark.parametrize("pattern", ["1:" + "9" * 400, "9" * 400 + ":4", "0:4", "٢:٤", "2:4\n"])
def test_a_pattern_of_impossible_numbers_is_refused(pattern):
    assert parse_rules(
        [{"granularity": pattern, "final_sparsity": 0.5}], ScheduledPruneRule
    ).problems


def test_a_list_of_too_many_rules_is_refused_at_once():
    (problem,) = parse_rules([{"sparsity": 0.5}] * 10_001, PruneRule).problems
    assert "10,001 rules, expected at most 10,000" in str(problem)


def test_of_many_problems_the_first_are_listed():
    parsed = parse_rules([{"sparsity": 2}] * 5000, PruneRule)
    assert len(parsed.problems) == 201
    text = str(ConfigError(parsed.problems))
    assert "more than 200 problems" in text and text.count("\n") == 200
