"""Old spellings are read exactly, contradictions reported, and nothing is raised."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lilliput.compat.nni.config.dialects import Translation, translate

quick = settings(deadline=None, derandomize=True)


def one(rule: dict[str, Any]) -> dict[str, Any]:
    """Translate a rule that becomes one rule without problems, and says so in a note."""
    result = translate([rule])
    assert result.problems == []
    assert result.origins == [0]
    assert result.notes
    assert all(note.startswith("rule 0: ") for note in result.notes)
    return result.rules[0]


def problems(rule: Any) -> list[str]:
    return [str(problem) for problem in translate([rule]).problems]


# -- modern ------------------------------------------------------------------------------------

MODERN: list[Any] = [
    {"op_types": ["default"], "sparsity": 0.8},
    {"op_types": ["Linear"], "op_names": ["!fc", "re:a|b", "*.x"], "total_sparsity": 0.5},
    {"op_names": ["fc"], "exclude": True},
    {"op_types": ["Conv2d"], "initial_sparsity": 0.0, "final_sparsity": 0.6, "start_epoch": 0},
    {
        "quant_types": ["weight", "input"],
        "quant_bits": {"weight": 8, "input": 4},
        "quant_scheme": {"weight": "symmetric", "input": "affine"},
        "quant_dtype": "int",
        "granularity": {"weight": "per_channel"},
    },
    {"granularity": [4, 4], "sparsity": 0.5},
    {"op_typos": ["Linear"], 5: None, None: 1},
    {},
]


def test_modern_rules_pass_through_equal_and_silently() -> None:
    result = translate(MODERN)
    assert result == Translation(MODERN, list(range(len(MODERN))), [], [])
    assert all(new is not old for new, old in zip(result.rules, MODERN, strict=True))


def test_entries_that_are_no_rules_pass_through_for_the_validator() -> None:
    junk: list[Any] = [None, 5, "op_types", ["a"], ("b",)]
    result = translate(junk)
    assert result.rules == junk
    assert result.origins == [0, 1, 2, 3, 4]
    assert not result.notes
    assert not result.problems


@pytest.mark.parametrize("rules", [None, 5, "text", b"bytes", object()])
def test_what_is_no_list_is_one_problem(rules: Any) -> None:
    (problem,) = translate(rules).problems
    assert "expected a list of rules" in problem.message


def test_one_mapping_is_a_list_of_one() -> None:
    assert translate({"sparsity": 0.5}).rules == [{"sparsity": 0.5}]  # type: ignore[arg-type]


def test_the_result_shares_no_list_with_the_input() -> None:
    types = ["Linear"]
    result = translate([{"op_types": types}, {"support_type": types, "support_op": ["a"]}])
    for rule in result.rules:
        rule.get("op_types", []).append("Conv2d")
    assert types == ["Linear"]
    assert result.rules[0]["op_types"] == ["Linear", "Conv2d"]


# -- 2019 and v1 -------------------------------------------------------------------------------


def test_the_example_of_the_2019_document() -> None:
    agp = {
        "start_epoch": 0,
        "end_epoch": 16,
        "frequency": 2,
        "initial_sparsity": 0.05,
        "final_sparsity": 0.6,
    }
    result = translate(
        [
            {**agp, "support_type": "default"},
            {**agp, "prune": False, "support_type": ["Linear"], "support_op": ["conv1", "conv2"]},
        ]
    )
    assert result.problems == []
    assert result.rules == [
        {**agp, "op_types": ["default"]},
        {**agp, "op_types": ["Linear"], "exclude": True},
        {**agp, "op_names": ["conv1", "conv2"], "exclude": True},
    ]
    assert result.origins == [0, 1, 1]
    assert result.notes == [
        "rule 0: 'support_type' (NNI 2019) reads as 'op_types'",
        "rule 1: 'support_type' (NNI 2019) reads as 'op_types'",
        "rule 1: 'support_op' (NNI 2019) reads as 'op_names'",
        "rule 1: 'prune': False (NNI 2019) reads as 'exclude': True",
        "rule 1: a type and a name (NNI 2019) mean type OR name: read as two rules",
    ]


@pytest.mark.parametrize("key", ["support_type", "support_layer"])
def test_support_type_and_support_layer_are_op_types(key: str) -> None:
    assert one({key: "default"}) == {"op_types": ["default"]}
    assert one({key: ["Linear", "Conv2d"]}) == {"op_types": ["Linear", "Conv2d"]}
    assert one({key: ("Linear",)}) == {"op_types": ["Linear"]}


def test_both_type_keys_must_agree() -> None:
    assert one({"support_type": "Linear", "support_layer": ["Linear"]}) == {"op_types": ["Linear"]}
    (message,) = problems({"support_type": ["Linear"], "support_layer": ["Conv2d"]})
    assert "'support_type'" in message
    assert "support_layer" in message


def test_an_old_key_must_agree_with_the_modern_one() -> None:
    rule = {"support_type": ["A", "B"], "op_types": ["B", "A"]}
    assert one(rule) == {"op_types": ["B", "A"]}
    (message,) = problems({"support_type": ["A"], "op_types": ["B"]})
    assert message == (
        "rule 0 → support_type: says ['A'] but 'op_types' says ['B']; keep one of them."
    )


@pytest.mark.parametrize(
    "rule",
    [
        {"support_type": ["Linear"], "op_names": ["fc"]},
        {"support_op": ["fc"], "op_types": ["Linear"]},
        {"support_op": ["fc"], "op_names_re": ["fc"]},
        {"support_type": ["Linear"], "exclude_op_types": ["Linear"]},
    ],
)
def test_or_of_2019_is_not_mixed_with_and_of_today(rule: dict[str, Any]) -> None:
    assert any("type OR name" in message for message in problems(rule))


def test_an_empty_half_of_type_or_name_selects_nothing_more() -> None:
    assert one({"support_type": [], "support_op": ["a"]}) == {"op_names": ["a"]}
    assert one({"support_type": ["A"], "support_op": []}) == {"op_types": ["A"]}


def test_prune_true_is_dropped_and_prune_false_excludes() -> None:
    assert one({"prune": True, "support_op": "a"}) == {"op_names": ["a"]}
    assert one({"prune": True, "exclude": False}) == {"exclude": False}
    assert one({"prune": False, "exclude": True}) == {"exclude": True}
    kept = {"exclude": True, "sparsity": 0.5, "op_types": ["Linear"]}
    assert one({"prune": False, "sparsity": 0.5, "op_types": ["Linear"]}) == kept


@pytest.mark.parametrize(
    "rule", [{"prune": True, "exclude": True}, {"prune": False, "exclude": False}, {"prune": "no"}]
)
def test_prune_against_exclude_is_a_problem(rule: dict[str, Any]) -> None:
    (message,) = problems(rule)
    assert message.startswith("rule 0 → prune: ")


def test_q_bits_are_quant_bits() -> None:
    assert one({"q_bits": 8, "op_types": ["Linear"], "op_names": ["fc"]}) == {
        "quant_bits": 8,
        "op_types": ["Linear"],
        "op_names": ["fc"],
    }
    assert one({"q_bits": 8, "quant_bits": {"weight": 8}}) == {"quant_bits": 8}
    assert "q_bits" in problems({"q_bits": 8, "quant_bits": 4})[0]


# -- v2 ----------------------------------------------------------------------------------------


def test_sparsity_per_layer_is_sparsity() -> None:
    assert one({"sparsity_per_layer": 0.8}) == {"sparsity": 0.8}
    assert one({"sparsity_per_layer": 0.8, "sparsity": 0.8}) == {"sparsity": 0.8}
    assert len(problems({"sparsity_per_layer": 0.8, "sparsity": 0.5})) == 1


def test_partial_names_become_globs_beside_the_names() -> None:
    rule = one({"op_names": ["fc"], "op_partial_names": ["conv", "l[0]*"]})
    assert rule == {"op_names": ["fc", "*conv*", "*l[[]0][*]*"]}


@quick
@given(part=st.text(max_size=8), before=st.text(max_size=3), after=st.text(max_size=3))
def test_a_partial_name_matches_literally(part: str, before: str, after: str) -> None:
    (pattern,) = one({"op_partial_names": part})["op_names"]
    assert fnmatchcase(before + part + after, pattern)
    assert not part or fnmatchcase("", pattern) is False


def test_a_compound_scheme_is_granularity_and_scheme() -> None:
    assert one({"quant_scheme": "per_channel_symmetric"}) == {
        "quant_scheme": "symmetric",
        "granularity": "per_channel",
    }
    by_type = {"weight": "per_channel_symmetric", "input": "per_tensor_affine", "output": "affine"}
    assert one({"quant_scheme": by_type}) == {
        "quant_scheme": {"weight": "symmetric", "input": "affine", "output": "affine"},
        "granularity": {"weight": "per_channel", "input": "per_tensor"},
    }
    (message,) = problems({"quant_scheme": "per_tensor_affine", "granularity": "per_channel"})
    assert "quant_scheme" in message
    assert "granularity" in message


# -- v3 ----------------------------------------------------------------------------------------


def test_v3_selection_becomes_patterns_and_negations() -> None:
    rule = one(
        {
            "op_types": ["Linear"],
            "op_names": ["head"],
            "op_names_re": ["enc.*"],
            "exclude_op_names": ["enc.0"],
            "exclude_op_names_re": ["enc.1$"],
            "exclude_op_types": ["Conv2d"],
        }
    )
    assert rule == {
        "op_types": ["Linear", "!Conv2d"],
        "op_names": ["head", "re:enc.*", "!enc.0", "!re:enc.1$"],
    }


REGEXES = [
    "enc",
    "enc.*",
    "enc$",
    r"e\.*",
    r"e\$",
    "a|enc",
    "(?i)ENC|b",
    "enc*",
    "",
    "^enc",
    "(a|e)",
]


@pytest.mark.parametrize("regex", REGEXES)
@pytest.mark.parametrize("name", ["enc", "encoder.0", "e", "e.", "e..x", "e$", "e$.x", "b", "xenc"])
def test_a_regex_that_matched_the_beginning_matches_the_whole(regex: str, name: str) -> None:
    # NNI v3 selects with re.match, today's 're:' must match the whole name.
    (entry,) = one({"op_names_re": [regex]})["op_names"]
    assert bool(re.fullmatch(entry.removeprefix("re:"), name)) == bool(re.match(regex, name))


@pytest.mark.parametrize("value", [5, [5], {"a": 1}, [["a"]]])
def test_names_of_the_wrong_kind_are_a_problem(value: Any) -> None:
    assert "expected a list of strings" in problems({"op_names_re": value})[0]
    assert problems({"op_names_re": ["a"], "op_names": value})


def test_sparse_ratios_are_sparsities() -> None:
    rule = one({"sparse_ratio": 0.5, "max_sparse_ratio": 0.9, "granularity": "out_channel"})
    assert rule == {"sparsity": 0.5, "max_sparsity_per_layer": 0.9, "granularity": "out_channel"}


def test_a_dtype_with_bits_is_dtype_and_bits() -> None:
    assert one({"quant_dtype": "int8"}) == {"quant_dtype": "int", "quant_bits": 8}
    assert one({"quant_dtype": {"weight": "int4", "input": "uint8"}}) == {
        "quant_dtype": {"weight": "int", "input": "uint"},
        "quant_bits": {"weight": 4, "input": 8},
    }
    assert problems({"quant_dtype": "int8", "quant_bits": 4})


@pytest.mark.parametrize("granularity", ["default", {"weight": "default"}])
def test_default_granularity_is_dropped(granularity: Any) -> None:
    assert one({"granularity": granularity, "sparsity": 0.5}) == {"sparsity": 0.5}


def test_the_v3_quantization_example() -> None:
    rule = one(
        {
            "op_types": ["Conv2d"],
            "target_names": ["_input_", "weight", "_output_0"],
            "quant_dtype": "int8",
            "quant_scheme": "affine",
            "granularity": "default",
        }
    )
    assert rule == {
        "op_types": ["Conv2d"],
        "quant_types": ["input", "weight", "output"],
        "quant_dtype": "int",
        "quant_bits": 8,
        "quant_scheme": "affine",
    }


def test_target_settings_of_a_quantizer_become_values_by_type() -> None:
    rule = one(
        {
            "op_names": ["fc"],
            "target_names": ["weight", "_input_"],
            "target_settings": {
                "weight": {
                    "quant_dtype": "int4",
                    "granularity": "per_channel",
                    "quant_scheme": None,
                },
                "_input_": {"quant_dtype": "uint8", "granularity": "default"},
            },
        }
    )
    assert rule == {
        "op_names": ["fc"],
        "quant_types": ["weight", "input"],
        "quant_dtype": {"weight": "int", "input": "uint"},
        "quant_bits": {"weight": 4, "input": 8},
        "granularity": {"weight": "per_channel"},
    }


def test_target_settings_alone_name_the_targets() -> None:
    rule = one({"target_settings": {"weight": {"quant_bits": 8}}})
    assert rule == {"quant_types": ["weight"], "quant_bits": {"weight": 8}}


def test_the_standard_pruning_config_of_the_v3_document() -> None:
    unset = ("max_sparse_ratio", "min_sparse_ratio", "sparse_threshold", "global_group_id")
    rule = one(
        {
            "op_names": ["fc1", "fc2"],
            "target_names": ["weight", "bias"],
            "target_settings": {
                "weight": {
                    "sparse_ratio": 0.8,
                    **dict.fromkeys(unset),
                    "granularity": "default",
                    "internal_metric_block": None,
                    "apply_method": "mul",
                },
                "bias": {"align": {"target_name": "weight", "dims": [0]}, "apply_method": "mul"},
            },
        }
    )
    assert rule == {"op_names": ["fc1", "fc2"], "sparsity": 0.8}


@pytest.mark.parametrize("targets", [["weight"], ["weight", "bias"], "weight"])
def test_the_weight_as_target_of_pruning_goes_without_saying(targets: Any) -> None:
    assert one({"target_names": targets, "sparse_ratio": 0.5}) == {"sparsity": 0.5}


@pytest.mark.parametrize(
    "rule",
    [
        {"target_names": ["_input_"], "sparse_ratio": 0.5},
        {"target_names": ["bias"], "sparse_ratio": 0.5},
        {"target_names": ["_input_1"], "quant_dtype": "int8"},
        {"target_names": ["bias"], "quant_dtype": "int8"},
        {"target_names": 5},
        {"target_settings": 5},
        {"target_settings": {"weight": 5}},
        {"target_settings": {5: {}}},
        {"target_names": ["weight"], "target_settings": {"_input_": {"quant_bits": 8}}},
        {"quant_bits": 8, "target_settings": {"weight": {"quant_bits": 4}}},
        {"sparse_ratio": 0.5, "target_settings": {"bias": {"sparse_ratio": 0.5}}},
        {"target_names": ["weight"], "quant_types": ["input"]},
        {"target_settings": {"weight": {"op_names": ["fc"], "quant_bits": 8}}},
    ],
)
def test_targets_without_an_equivalent_are_problems(rule: dict[str, Any]) -> None:
    assert all(message.startswith("rule 0 → target_") for message in problems(rule))
    assert problems(rule)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("sparse_threshold", "'total_sparsity'"),
        ("min_sparse_ratio", "'sparsity'"),
        ("global_group_id", "'total_sparsity'"),
        ("dependency_group_id", "remove it"),
        ("internal_metric_block", "remove it"),
        ("align", "returns all masks of a layer itself"),
        ("apply_method", "'mul'"),
        ("fuse_names", "fuse them before compressing"),
    ],
)
def test_a_key_without_an_equivalent_says_what_to_do(key: str, advice: str) -> None:
    (message,) = problems({"sparse_ratio": 0.5, key: "x"})
    assert message.startswith(f"rule 0 → {key}: ")
    assert advice in message
    (message,) = problems({"target_settings": {"weight": {"sparse_ratio": 0.5, key: "x"}}})
    assert message.startswith("rule 0 → target_settings → 'weight' → " + key)
    assert one({"sparse_ratio": 0.5, key: None}) == {"sparsity": 0.5}


def test_multiplying_masks_is_what_happens_anyway() -> None:
    assert one({"sparse_ratio": 0.5, "apply_method": "mul"}) == {"sparsity": 0.5}


def test_problems_and_origins_count_the_rules_of_the_user() -> None:
    result = translate([{"support_type": "A", "support_op": "b"}, {"align": 1}, {"sparsity": 0.1}])
    assert result.origins == [0, 0, 1, 2]
    assert [problem.path for problem in result.problems] == ["rule 1 → align"]


# -- junk --------------------------------------------------------------------------------------


class Hostile:
    """A value whose every method fails."""

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    __hash__ = object.__hash__


class HostileMapping(Mapping[str, Any]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("getitem")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("iter")

    def __len__(self) -> int:
        raise RuntimeError("len")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def looped() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


KEYS = [
    *("op_types", "op_names", "exclude", "sparsity", "total_sparsity", "max_sparsity_per_layer"),
    *("granularity", "quant_types", "quant_bits", "quant_scheme", "quant_dtype", "q_bits", "prune"),
    *("support_type", "support_layer", "support_op", "sparsity_per_layer", "op_partial_names"),
    *("op_names_re", "exclude_op_names", "exclude_op_names_re", "exclude_op_types", "sparse_ratio"),
    *("max_sparse_ratio", "target_names", "target_settings", "sparse_threshold", "apply_method"),
    *("min_sparse_ratio", "global_group_id", "dependency_group_id", "align", "fuse_names"),
    *("internal_metric_block", "weight", "bias", "_input_", "_output_0", "_input_1", "unknown"),
]
LIKELY = ["default", "Linear", "weight", "input", "mul", "int8", "uint4", "per_channel_symmetric"]


@pytest.mark.parametrize(
    "value",
    [Hostile(), HostileMapping(), nested(3000), looped(), 10**5000],
    ids=["object", "mapping", "deep", "loop", "digits"],
)
def test_hostile_values_never_raise(value: Any) -> None:
    for key in KEYS:
        same = copy.copy(value)
        translate([{key: value}, *({key: value, other: same} for other in KEYS[:12])])
        targets = {"weight": {key: value}, "bias": {key: value}}
        translate([{"target_settings": targets, key: same, "target_names": ["weight", value]}])


def test_hostile_rules_never_raise() -> None:
    rule = HostileMapping()
    result = translate([rule, Hostile()])  # type: ignore[list-item]
    assert result.rules[0] is rule
    assert not translate(HostileMapping()).problems  # type: ignore[arg-type]


SCALARS = (
    st.sampled_from(LIKELY)
    | st.none()
    | st.booleans()
    | st.integers(-1, 9)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=2)
)
ANY_KEY = st.sampled_from(KEYS) | st.integers(0, 3) | st.none() | st.text(max_size=3)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(ANY_KEY, inner, max_size=4)
    ),
    max_leaves=8,
)
RULE = st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4) | st.dictionaries(
    ANY_KEY, JUNK, max_size=5
)
TARGETS = st.dictionaries(
    st.sampled_from(["weight", "bias", "_input_"]),
    st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=3),
    max_size=3,
)
V3_RULE = st.fixed_dictionaries(
    {"target_settings": TARGETS}, optional=dict.fromkeys(KEYS[6:12], SCALARS)
)


@settings(quick, max_examples=600)
@given(rules=st.lists(RULE | V3_RULE | JUNK, max_size=3) | JUNK)
@example(rules=[{"quant_scheme": {"weight": "per_channel_symmetric"}, "granularity": "default"}])
def test_any_input_is_translated_without_raising_or_changing_it(rules: Any) -> None:
    before = copy.deepcopy(rules)
    result = translate(rules)
    assert repr(rules) == repr(before)
    assert len(result.rules) == len(result.origins)
    assert result.origins == sorted(result.origins)
    assert all(isinstance(note, str) and "\n" not in note for note in result.notes)


@settings(quick, max_examples=600)
@given(rules=st.lists(RULE | V3_RULE, max_size=2))
def test_a_translation_is_modern(rules: list[dict[str, Any]]) -> None:
    first = translate(rules)
    if not first.problems:
        second = translate(first.rules)
        assert second.rules == first.rules
        assert second.notes == []
        assert second.problems == []
