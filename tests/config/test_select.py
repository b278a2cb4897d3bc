import pytest
from torch import nn

from lilliput.config.parse import parse_rules
from lilliput.config.select import select
from lilliput.config.spec import PruneRule
from lilliput.frameworks.torch.discover import DEFAULT_TYPES, discover


def make_layers():
    model = nn.ModuleDict(
        {
            "stem": nn.Conv2d(1, 2, 3),
            "norm": nn.BatchNorm2d(2),
            "blocks": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
            "act": nn.ReLU(),
            "head": nn.Linear(2, 2),
        }
    )
    return discover(model)


def pick(*rules):
    parsed = parse_rules(list(rules), PruneRule)
    assert not parsed.problems
    return select(
        make_layers(), parsed.rules, DEFAULT_TYPES, parsed.origins, lambda n: hasattr(nn, n)
    )


def names(*rules):
    selection = pick(*rules)
    assert not selection.problems, selection.problems
    return {layer.name: layer.config.get("sparsity") for layer in selection.chosen}


def test_default_takes_weight_layers_and_never_norms():
    everything = {"stem": 0.5, "blocks.0": 0.5, "blocks.1": 0.5, "head": 0.5}
    assert names({"op_types": ["default"], "sparsity": 0.5}) == everything
    assert names({"sparsity": 0.5}) == everything


def test_norms_are_taken_when_named():
    assert names({"op_types": ["BatchNorm2d"], "sparsity": 0.5}) == {"norm": 0.5}


def test_the_last_matching_rule_wins_as_a_whole():
    chosen = names(
        {"op_types": ["Linear"], "sparsity": 0.5},
        {"op_names": ["head"], "sparsity": 0.2},
        {"op_names": ["blocks.1"], "exclude": True},
    )
    assert chosen == {"blocks.0": 0.5, "head": 0.2}


def test_an_excluded_layer_can_be_taken_back_by_a_later_rule():
    chosen = names(
        {"op_types": ["Linear"], "exclude": True},
        {"op_names": ["head"], "sparsity": 0.3},
    )
    assert chosen == {"head": 0.3}


def test_exclude_false_does_not_exclude():
    assert names({"op_names": ["head"], "sparsity": 0.3, "exclude": False}) == {"head": 0.3}


@pytest.mark.parametrize("pattern", ["blocks.*", "blocks.?", "re:blocks\\.\\d", "blocks.[01]"])
def test_names_match_by_glob_and_regex(pattern):
    assert set(names({"op_names": [pattern], "sparsity": 0.1})) == {"blocks.0", "blocks.1"}


def test_types_and_names_must_both_match():
    assert set(names({"op_types": ["Linear"], "op_names": ["*e*"], "sparsity": 0.1})) == {"head"}


def test_negated_entries_leave_layers_to_other_rules():
    chosen = names(
        {"sparsity": 0.5},
        {"op_types": ["Linear"], "op_names": ["!head"], "sparsity": 0.1},
    )
    assert chosen == {"stem": 0.5, "blocks.0": 0.1, "blocks.1": 0.1, "head": 0.5}


def test_subclasses_are_found_by_the_name_of_their_base():
    class MyLinear(nn.Linear):
        pass

    layers = discover(nn.Sequential(MyLinear(2, 2)))
    rules = parse_rules([{"op_types": ["Linear"], "sparsity": 0.5}], PruneRule).rules
    assert [layer.type for layer in select(layers, rules, DEFAULT_TYPES).chosen] == ["MyLinear"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"op_types": ["linear"]}, "'linear' matches no layer. Did you mean 'Linear'?"),
        ({"op_names": ["haed"]}, "'haed' matches no layer. Did you mean 'head'?"),
        ({"op_names": ["blocks"]}, "write 'blocks.*'"),
        ({"op_names": ["re:["]}, "not a regular expression"),
        ({"op_names": ["nothing*"]}, "'nothing*' matches no layer."),
        ({"op_types": ["Conv3d"]}, "Layers here: Linear ×3"),
        ({"op_types": ["Conv2d"], "op_names": ["head"]}, "matches no layer"),
        ({"op_names": ["heat"], "exclude": True}, "Did you mean 'head'?"),
    ],
)
def test_a_rule_that_takes_nothing_is_a_problem_with_a_hint(rule, words):
    (problem,) = pick({"sparsity": 0.5} | rule).problems
    assert words in str(problem)


def test_a_known_type_that_the_model_lacks_is_no_problem_beside_one_it_has():
    chosen = names({"op_types": ["Conv2d", "Conv3d"], "sparsity": 0.5})
    assert set(chosen) == {"stem"}


def test_excluding_everything_is_a_problem():
    (problem,) = pick({"sparsity": 0.5}, {"op_types": ["default"], "exclude": True}).problems
    assert "no layer is left" in str(problem)


def test_explain_says_which_rule_took_which_layer():
    selection = pick({"sparsity": 0.5}, {"op_names": ["head"], "exclude": True})
    lines = {line.split()[0]: " ".join(line.split()) for line in str(selection).splitlines()}
    assert lines["stem"] == "stem Conv2d 2×1×3×3 rule 0 sparsity=0.5"
    assert lines["head"] == "head Linear 2×2 excluded by rule 1"
    assert lines["norm"] == "norm BatchNorm2d 2 no rule matches"


@pytest.mark.parametrize("patterns", [["*"], ["!stem"], ["re:.*"]])
def test_patterns_stay_within_the_default_types(patterns):
    assert "norm" not in names({"op_names": patterns, "sparsity": 0.5})
    assert "norm" in names({"op_names": patterns, "op_types": ["BatchNorm2d"], "sparsity": 0.5})


def test_a_layer_named_in_full_is_taken_whatever_its_type():
    assert names({"op_names": ["norm", "blocks.*"], "sparsity": 0.5}).keys() == {
        "norm",
        "blocks.0",
        "blocks.1",
    }


def test_a_pattern_that_finds_only_other_types_says_so():
    (problem,) = pick({"op_names": ["nor*"], "sparsity": 0.5}).problems
    assert "Patterns match only the default types" in str(problem)


def test_names_are_printed_without_what_a_terminal_would_act_upon():
    model = nn.Sequential()
    model._modules["conv\x1b]0;owned\x07"] = nn.Linear(2, 2)
    layers = discover(model)
    text = str(select(layers, [PruneRule(sparsity=0.5)], DEFAULT_TYPES))
    assert "\x1b" not in text and "conv\\x1b]0;owned\\x07" in text
    problems = select(layers, [PruneRule(op_names=["x\x1b[2J"], sparsity=0.5)], set()).problems
    assert problems and "\x1b" not in "".join(map(str, problems))
