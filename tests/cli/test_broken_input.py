"""Broken recipes and command lines: one screen with the place and the fix, exit code 2, no traceback."""

import textwrap

import pytest
from broken_commands import broken_command
from broken_recipes import RECIPE, broken_recipe, yaml_of

# What a fix looks like.
FIXES = [
    "did you mean",
    "expected",
    "expecting",
    "missing",
    "choose",
    "give ",
    "write",
    "remove",
    "keep ",
]
FIXES += [
    "put ",
    "known",
    "leave ",
    "there is no",
    "there are",
    "it takes",
    "needs ",
    "must",
    "should",
]
FIXES += ["unknown key", "comes ", "make ", "set ", "at most", "at least", "larger than", "deeper"]
FIXES += ["not utf-8", "give one", "more than", "duplicate", "could not", "while", "did not find"]
FIXES += [
    "it has",
    "not allowed",
    "no such",
    "received",
    "only yaml",
    "cannot start",
    "but found",
    "invalid",
]
QUICK, ALL = 100, 1000  # of each kind


def judge(ended, words, what):
    """Say what is wrong with the end of a command."""
    text = ended.err
    shown = f"{what}\nexit {ended.code}\n{ended.out}{text}"
    assert ended.code == 2, shown
    assert ended.out == "", shown
    assert text.startswith("error: "), shown
    assert "Traceback" not in text and 'File "' not in text, shown
    folded = [part for line in text.splitlines() for part in textwrap.wrap(line, 80) or [""]]
    assert len(folded) <= 24, shown
    assert any(word in text for word in words), shown
    assert any(fix in text.lower() for fix in FIXES), shown


@pytest.fixture
def folder(place):
    (place / "folder").mkdir()
    (place / "notes.txt").write_text("some notes", encoding="utf-8")
    (place / "recipe.yaml").write_text(yaml_of(RECIPE), encoding="utf-8")
    (place / "rules.yaml").write_text("- {op_types: [Linear], sparsity: 0.5}\n", encoding="utf-8")
    (place / "damaged.json").write_text('{"receipt": 3}', encoding="utf-8")
    (place / "good.json").write_text("{}", encoding="utf-8")
    return place


def check_recipes(seeds, lilliput, folder):
    for seed in seeds:
        name, data, suffix, words = broken_recipe(seed)
        (folder / f"wrong{suffix}").write_bytes(data)
        command = ["run"] if seed % 3 else ["config", "check"]
        shown = data[:3000].decode("utf-8", "replace")
        judge(lilliput(*command, f"wrong{suffix}"), words, f"{name} {seed} {command}\n{shown}")


def check_commands(seeds, lilliput):
    for seed in seeds:
        name, arguments, words = broken_command(seed)
        judge(lilliput(*arguments), words, f"{name} {seed}\n{arguments}")


def test_broken_recipes_end_with_the_place_and_the_fix(lilliput, folder):
    check_recipes(range(QUICK), lilliput, folder)


def test_broken_command_lines_end_with_the_place_and_the_fix(lilliput, folder):
    check_commands(range(QUICK), lilliput)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK, ALL, 100))
def test_more_broken_input(lilliput, folder, start):
    check_recipes(range(start, start + 100), lilliput, folder)
    check_commands(range(start, start + 100), lilliput)
