"""lilliput.config.files: a config file gives its rules or a ConfigError that names the file."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lilliput.config.files import read_rules, write_rules
from lilliput.errors import ConfigError

Write = Callable[..., Path]
quick = settings(deadline=None, derandomize=True)

SEED_FILE = """\
tfAGPruner:
  config:
    -
        start_epoch: 0
        end_epoch: 16
        frequency: 2
        initial_sparsity: 0.05
        final_sparsity: 0.60
        support_type: default
    -
        prune: False
        support_type: [Linear]
        support_op: [conv1, conv2]
"""
RULES = [{"op_types": ["Linear"], "sparsity": 0.5}]
RULES_YAML = "- op_types: [Linear]\n  sparsity: 0.5\n"
INDENTED = "    - op_types: [Linear]\n      sparsity: 0.5\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str | bytes, name: str = "rules.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write_file


def error_of(path: Path | str, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_rules(path, *args, **kwargs)
    named = str(path).replace("\0", r"\x00")  # what a terminal would not show is spelled out
    assert named in str(caught.value), "the message names the file"
    return str(caught.value)


# -- forms of a file ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.YAML"])
def test_a_top_level_list_is_the_config_list(write: Write, name: str) -> None:
    assert read_rules(write(RULES_YAML, name)) == RULES


def test_json_holds_the_same(write: Write) -> None:
    text = '[{"op_types": ["Linear"], "sparsity": 0.5}]'
    assert read_rules(write(text, "a.json")) == RULES
    assert read_rules(str(write(text, "a.JSON"))) == RULES


@pytest.mark.parametrize("key", ["config_list", "config"])
def test_a_mapping_may_hold_the_list(write: Write, key: str) -> None:
    path = write(f"version: 1\n{key}:\n{RULES_YAML}")
    assert read_rules(path) == RULES
    assert read_rules(path, ["AGPruner"]) == RULES


def test_both_list_keys_are_a_contradiction(write: Write) -> None:
    assert "both" in error_of(write("config: []\nconfig_list: []"))


@pytest.mark.parametrize("name", ["AGPruner", "torchAGPruner", "agp_pruner", "torch-agp-pruner"])
@pytest.mark.parametrize("inner", ["  config:\n", "  config_list:\n", ""])
def test_a_section_is_found_by_any_spelling_of_its_name(
    write: Write, name: str, inner: str
) -> None:
    path = write(f"Other:\n  config: []\n{name}:\n{inner}{INDENTED}")
    assert read_rules(path, ["AGPruner", "AGP_Pruner"]) == RULES


def test_the_2019_document_is_read_for_its_framework(write: Write) -> None:
    rules = read_rules(write(SEED_FILE), ["AGPruner"], framework="keras")
    assert [rule["support_type"] for rule in rules] == ["default", ["Linear"]]
    assert rules[1]["prune"] is False


@pytest.mark.parametrize("section", [["AGPruner"], []])
def test_a_section_of_another_framework_is_refused_with_the_right_name(
    write: Write, section: list[str]
) -> None:
    message = error_of(write(SEED_FILE), section)
    assert "another framework than torch" in message
    assert "'torchAGPruner'" in message


def test_each_framework_takes_its_own_section(write: Write) -> None:
    path = write("tfLevelPruner: [{sparsity: 0.1}]\ntorchLevelPruner: [{sparsity: 0.2}]")
    for section in (["LevelPruner"], []):
        assert read_rules(path, section, "keras") == [{"sparsity": 0.1}]
        assert read_rules(path, section, "torch") == [{"sparsity": 0.2}]


def test_without_a_name_the_only_section_is_taken(write: Write) -> None:
    assert read_rules(write(f"version: 2\nAnything:\n  config:\n{INDENTED}")) == RULES


def test_without_a_name_two_sections_are_ambiguous(write: Write) -> None:
    message = error_of(write("A: {config: []}\nB: {config: []}"))
    assert "['A', 'B']" in message


def test_two_sections_that_match_are_ambiguous(write: Write) -> None:
    assert "all fit" in error_of(write("AGPruner: []\ntorchAGPruner: []"), ["AGPruner"])


def test_a_missing_section_names_those_present_and_the_nearest(write: Write) -> None:
    message = error_of(write("AGPrunner: []\nLevel: []"), ["AGPruner", "agp"])
    assert "'AGPrunner', 'Level'" in message
    assert "Did you mean 'AGPruner'?" in message


def test_one_rule_without_a_list_is_explained(write: Write) -> None:
    message = error_of(write("op_types: [Linear]\nsparsity: 0.5"), ["AGPruner"])
    assert "one rule" in message
    assert "one rule" in error_of(write("op_types: [Linear]\nsparsity: 0.5"))


@pytest.mark.parametrize("held", ["5", "{a: 1}", "{config: 3}", "text", "null"])
def test_a_section_without_a_list_says_what_it_holds(write: Write, held: str) -> None:
    assert "expected a list of rules" in error_of(write(f"AGPruner: {held}"), ["AGPruner"])


# -- faults of a file --------------------------------------------------------------------------


def test_a_missing_file_suggests_its_neighbour(write: Write, tmp_path: Path) -> None:
    write(RULES_YAML, "pruning.yaml")
    message = error_of(tmp_path / "prunning.yaml")
    assert "no such file" in message
    assert "Did you mean 'pruning.yaml'?" in message
    assert "no such file" in error_of(tmp_path / "none" / "a.yaml")


@pytest.mark.parametrize("name", ["nul\0.yaml", "x" * 300 + ".yaml"])
def test_an_impossible_file_name_is_a_config_error(tmp_path: Path, name: str) -> None:
    error_of(tmp_path / name)


@pytest.mark.parametrize("name", ["folder", "folder.yaml"])
def test_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert "is a folder" in error_of(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    error_of(tmp_path / "pipe.yaml")


@pytest.mark.parametrize("name", ["rules.toml", "rules", "rules.yaml.bak"])
def test_another_suffix_is_refused(write: Write, name: str) -> None:
    assert ".yaml, .yml, .json" in error_of(write(RULES_YAML, name))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", b"- a: \xff\xfe\n", "line 1: is not UTF-8"),
        ("a.json", '[{"a": "é"}]'.encode("utf-16"), "is not UTF-8"),
        ("a.yaml", "- a: [1\n- b: 2\n", "line 2"),
        ("a.json", '[\n{"a": 1,}\n]', "line 2"),
        ("a.yaml", "- a: 1\n  b: 2\n  a: 3\n", "line 3, column 3: found duplicate key"),
        ("a.json", '[{"a": 1, "a": 1}]', "duplicate key 'a'"),
        ("a.yaml", "- !!python/object/apply:os.system [ls]\n", "!!python/object/apply:os.system"),
        ("a.yaml", "- !!set {a, b}\n", "!!set"),
        ("a.yaml", "- !!binary aGk=\n", "!!binary"),
        ("a.yaml", "- since: 2019-08-21\n", "put it in quotes"),
        ("a.yaml", "- ? [a, b]\n  : 1\n", "a tuple"),
        ("a.yaml", "- a: .inf\n", "inf"),
        ("a.yaml", "%YAML 1.1\n---\n- a: yes\n", "only YAML 1.2"),
        ("a.yaml", "- &a {x: 1}\n- <<: *a\n", "line 2: merge keys"),
        ("a.yaml", "- a: 1\n---\n- b: 2\n", "another document"),
        ("a.yaml", "", "is empty"),
        ("a.yaml", "# nothing but this\n", "is empty"),
        ("a.json", " \n", "is empty"),
        ("a.json", "[NaN]", "NaN"),
        ("a.json", "[-Infinity]", "-Infinity"),
        ("a.json", "[1e999]", "inf"),
        ("a.json", f"[{'9' * 5000}]", "digits"),
        ("a.yaml", "just text", "expected a list of rules at the top, received a str"),
        ("a.json", "5", "expected a list of rules at the top, received an int"),
        ("a.yaml", "- " * 51 + "x\n", "nested deeper than 50"),
        ("a.yaml", "[" * 51 + "]" * 51, "nested deeper than 50"),
        ("a.json", "[" * 51 + "]" * 51, "nested deeper than 50"),
        ("a.json", "[" * 500_000, "nested deeper than 50"),
        ("a.yaml", "[" * 500_000, "nested deeper than 50"),
        ("a.yaml", "- &a 1\n" + "- *a\n" * 101, "more than 100 aliases"),
        ("a.yaml", "- &a [*a]\n", "nested deeper than 50"),
        ("a.json", "[" + " " * (1 << 20) + "]", "larger than 1 MiB"),
    ],
)
def test_a_fault_is_named(write: Write, name: str, text: str | bytes, expected: str) -> None:
    assert expected in error_of(write(text, name))


def test_the_limits_themselves_are_allowed(write: Write) -> None:
    assert read_rules(write("[" * 50 + "]" * 50))
    assert read_rules(write("[" * 50 + "]" * 50, "a.json"))
    assert len(read_rules(write("- &a 1\n" + "- *a\n" * 100))) == 101
    assert read_rules(write("[" + " " * ((1 << 20) - 2) + "]", "a.json")) == []


def test_unquoted_negations_and_globs_get_the_advice_to_quote_them(write: Write) -> None:
    assert "put quotes around '!fc'" in error_of(write("- op_names: [!fc , conv]\n"))
    assert "put quotes around '*.fc'" in error_of(write("- op_names:\n  - *.fc\n"))
    assert read_rules(write("- op_names: ['!fc', '*.fc']\n")) == [{"op_names": ["!fc", "*.fc"]}]


def test_an_alias_bomb_is_refused_quickly(write: Write) -> None:
    lines = ["- &a0 [" + ", ".join(["x"] * 9) + "]"]
    lines += [f"- &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 10)]
    start = time.perf_counter()
    assert "once its aliases are followed" in error_of(write("\n".join(lines)))
    assert time.perf_counter() - start < 30


def test_aliases_give_independent_values(write: Write) -> None:
    first, second = read_rules(write("- op_types: &t [Linear]\n- op_types: *t\n"))
    assert first == second
    assert first["op_types"] is not second["op_types"]


def test_an_anchor_may_be_used_again(write: Write) -> None:
    assert read_rules(write("- &a 1\n- &a 2\n- *a\n")) == [1, 2, 2]


def test_yaml_is_read_as_version_1_2(write: Write) -> None:
    text = "- {a: yes, b: off, c: 0o17, d: 1e-3, e: true, f: null, g: 12:30:00}\n"
    assert read_rules(write(text)) == [
        {"a": "yes", "b": "off", "c": 15, "d": 0.001, "e": True, "f": None, "g": "12:30:00"}
    ]


def test_a_byte_order_mark_is_skipped(write: Write) -> None:
    assert read_rules(write(b"\xef\xbb\xbf" + RULES_YAML.encode())) == RULES
    assert read_rules(write(b"\xef\xbb\xbf[]", "a.json")) == []


def test_importing_the_module_does_not_import_ruamel() -> None:
    import subprocess

    code = (
        "import sys, importlib.util as u;"
        f"s = u.spec_from_file_location('f', {sys.modules['lilliput.config.files'].__file__!r});"
        "m = u.module_from_spec(s); s.loader.exec_module(m);"
        "sys.exit('ruamel.yaml' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )


PIECES = (
    "- ;a: ;[;];{;};\n;  ;&a ;*a ;!!int ;!x ;\";';|\n;>-\n;? ;: ;#;---\n;...\n;%YAML 1.2\n;<<: "
)
MORE = ";0x;1e;_;2001-01-;99;,;null;~;\t;\\;\x85;AGPruner: "
FRAGMENTS = st.sampled_from((PIECES + MORE).encode().split(b";"))


@settings(quick, max_examples=150)
@given(
    data=st.binary(max_size=60) | st.lists(FRAGMENTS, max_size=12).map(b"".join),
    name=st.sampled_from(["a.yaml", "a.json"]),
    section=st.sampled_from([(), ("AGPruner",)]),
)
@example(data=b"- 0x_", name="a.yaml", section=())
@example(data=b"- 2001-99-99", name="a.yaml", section=())
def test_any_bytes_give_a_list_or_a_config_error(
    data: bytes, name: str, section: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        try:
            rules = read_rules(path, section)
        except ConfigError:
            error_of(path, section)
        else:
            assert type(rules) is list


# -- writing -----------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["yes", "1e3", "0o17", "!fc", "*.fc", "re:a|b", "2019-08-21", "<<", "~", "-"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(quick, max_examples=100)
@given(
    rules=st.lists(st.dictionaries(st.text(max_size=10), VALUES, max_size=4), max_size=3),
    name=st.sampled_from(["a.yaml", "a.json"]),
)
@example(rules=[{"\x85\u2028\ufeff": "\x00\x1b\r\n \ud800"}], name="a.yaml")
@example(rules=[{"a": "\ud800"}], name="a.json")
def test_what_is_written_reads_back_the_same(rules: list[dict[str, Any]], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        write_rules(rules, path)
        assert read_rules(path) == rules
        assert [path.name for path in Path(folder).iterdir()] == [name]


def test_keys_are_written_in_their_order(tmp_path: Path) -> None:
    write_rules([{"sparsity": 0.5, "op_types": ["b", "a"]}], tmp_path / "a.yaml")
    assert (tmp_path / "a.yaml").read_text() == "- sparsity: 0.5\n  op_types:\n  - b\n  - a\n"


def test_shared_values_are_written_without_aliases(tmp_path: Path) -> None:
    shared = ["Linear"]
    write_rules([{"op_types": shared}, {"op_types": shared}], tmp_path / "a.yaml")
    assert "&" not in (tmp_path / "a.yaml").read_text()


def test_tuples_and_string_enums_are_written_as_plain_values(tmp_path: Path) -> None:
    class Scheme(str, Enum):
        AFFINE = "affine"

    write_rules([{"op_types": ("Linear",), "quant_scheme": Scheme.AFFINE}], tmp_path / "a.yaml")
    assert read_rules(tmp_path / "a.yaml") == [{"op_types": ["Linear"], "quant_scheme": "affine"}]


def cyclic() -> list[Any]:
    rules: list[Any] = []
    rules.append(rules)
    return rules


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
@pytest.mark.parametrize(
    "rules",
    [
        [{"a": float("nan")}],
        [{"a": float("inf")}],
        [{"a": {1, 2}}],
        [{"a": object()}],
        [{"a": b"x"}],
        [{("a", "b"): 1}],
        [{"a": "x" * (1 << 20)}],
        cyclic(),
        {"a": 1},
        "text",
        None,
    ],
)
def test_what_cannot_be_written_exactly_is_refused_and_the_old_file_kept(
    tmp_path: Path, name: str, rules: Any
) -> None:
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(ConfigError, match=name):
        write_rules(rules, tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"old"


def test_json_refuses_keys_that_it_would_turn_into_strings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keys strings"):
        write_rules([{1: 2}], tmp_path / "a.json")  # type: ignore[dict-item]
    write_rules([{1: 2}], tmp_path / "a.yaml")  # type: ignore[dict-item]
    assert read_rules(tmp_path / "a.yaml") == [{1: 2}]


def test_writing_with_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.yaml, \.yml, \.json"):
        write_rules([], tmp_path / "a.txt")
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_failed_replacement_keeps_the_old_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rules(RULES, tmp_path / "a.yaml")

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_rules([], tmp_path / "a.yaml")
    assert read_rules(tmp_path / "a.yaml") == RULES


def test_yaml_of_more_values_than_it_reads_in_a_second_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("- {sparsity: 0.5}\n" * 10_000)
    with pytest.raises(ConfigError, match="more than 20,000 names and values"):
        read_rules(file)
