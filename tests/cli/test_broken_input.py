"""Broken recipes and command lines: one screen with the place and the fix, exit code 2, no traceback."""

import textwrap

import pytest
from broken_commands import broken_command
from broken_recipes import RECIPE, broken_recipe, yaml_of

QUICK, ALL = 100, 1000  # of each kind


def judge(ended, words, fixes, what):
    """Say what is wrong with the end of a command: it names the place, and the fix of this very fault."""
    text = ended.err
    shown = f"{what}\nexit {ended.code}\n{ended.out}{text}"
    assert ended.code == 2, shown
    assert ended.out == "", shown
    assert text.startswith("error: "), shown
    assert "Traceback" not in text and 'File "' not in text, shown
    folded = [part for line in text.splitlines() for part in textwrap.wrap(line, 80) or [""]]
    assert len(folded) <= 24, shown
    assert any(word in text for word in words), shown
    assert any(fix in text for fix in fixes), f"{shown}\nexpected one of {fixes}"


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
        name, data, suffix, words, fixes = broken_recipe(seed)
        (folder / f"wrong{suffix}").write_bytes(data)
        command = ["run"] if seed % 3 else ["config", "check"]
        shown = data[:3000].decode("utf-8", "replace")
        ended = lilliput(*command, f"wrong{suffix}")
        judge(ended, words, fixes, f"{name} {seed} {command}\n{shown}")


def check_commands(seeds, lilliput):
    for seed in seeds:
        name, arguments, words, fixes = broken_command(seed)
        judge(lilliput(*arguments), words, fixes, f"{name} {seed}\n{arguments}")


def test_broken_recipes_end_with_the_place_and_the_fix(lilliput, folder):
    check_recipes(range(QUICK), lilliput, folder)


def test_broken_command_lines_end_with_the_place_and_the_fix(lilliput, folder):
    check_commands(range(QUICK), lilliput)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(QUICK, ALL, 100))
def test_more_broken_input(lilliput, folder, start):
    check_recipes(range(start, start + 100), lilliput, folder)
    check_commands(range(start, start + 100), lilliput)
