"""Every way to fail: what is shown, and the exit code."""

import json
import shlex

import pytest

from lilliput.cli.failures import explain, own_frames
from lilliput.errors import ConfigError, MissingExtraError, Problem, StateError


def test_the_users_own_lines_are_shown_and_no_others(lilliput, place):
    ended = lilliput("analyze", "tiny_cli:build", "--evaluate", "tiny_cli:fails", "--quiet")
    lines = ended.err.splitlines()
    assert ended.code == 1
    assert (
        lines[0] == "error: --evaluate: tiny_cli:fails failed: IndexError: list index out of range"
    )
    assert lines[1].startswith("  tiny_cli.py, line ") and lines[1].endswith("in fails")
    assert lines[2] == '    return [][len("three")]'
    assert len(lines) == 4 and "Traceback" not in ended.err


def test_traceback_shows_it_all(lilliput, place, monkeypatch):
    words = ["analyze", "tiny_cli:build", "--evaluate", "tiny_cli:fails", "--quiet"]
    assert "Traceback" in lilliput(*words, "--traceback").err
    monkeypatch.setenv("LILLIPUT_TRACEBACK", "1")
    assert "Traceback" in lilliput(*words).err


def test_a_recipe_names_the_function_that_failed(place):
    (place / "recipe.yaml").write_text("evaluate: tiny_cli:fails\n", encoding="utf-8")
    from importlib import import_module

    try:
        import_module("tiny_cli").fails(None)
    except IndexError as error:
        text = explain(error, ["run", "recipe.yaml"]).lines[0]
    assert text.startswith("error: evaluate: tiny_cli:fails failed: IndexError")


def test_ctrl_c_says_how_to_go_on(lilliput, place, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("lilliput.cli.commands.run.execute", interrupted)
    ended = lilliput("run", "my recipe.yaml", "-o", "out")
    assert ended.code == 130
    expected = "interrupted; continue with: lilliput run 'my recipe.yaml' -o out --resume\n"
    assert ended.err == expected
    monkeypatch.setattr("lilliput.recipes.auto.compress", interrupted)
    words = ["auto", "tiny_cli:build", "--target", "macs=0.5", "--data", "tiny_cli:batches"]
    words += ["--evaluate", "tiny_cli:accuracy", "-o", "my best"]
    ended = lilliput(*words)
    again = f"lilliput {shlex.join(words)} --resume"
    assert ended.code == 130
    assert ended.err == f"interrupted; no file was written yet; continue with: {again}\n"
    (place / "my best").mkdir()
    (place / "my best" / "model.onnx").touch()  # interrupted while its receipt was taken
    assert lilliput(*words).err == f"interrupted; continue with: {again}\n"
    monkeypatch.setattr("lilliput.search.repair.repair", interrupted)
    (place / "rules.json").write_text('[{"op_types": ["default"], "sparsity": 0.5}]')
    words = ["repair", "tiny_cli:build", "rules.json", "--drop", "0.1", *words[4:8]]
    again = f"lilliput {shlex.join(words)} --resume"
    assert lilliput(*words).err == f"interrupted; continue with: {again}\n"
    monkeypatch.setattr("lilliput.cli.checkup.total_memory", interrupted)
    assert lilliput("doctor").err == "interrupted\n"


def test_sys_exit_in_a_users_function_is_an_error(lilliput, place):
    (place / "leaves.py").write_text("import sys\n\n\ndef build():\n    sys.exit(0)\n")
    ended = lilliput("inspect", "leaves:build")
    assert ended.code == 1 and "sys.exit(0)" in ended.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (StateError("x"), 1),
        (MissingExtraError("x"), 3),
        (ModuleNotFoundError("no torch", name="torch"), 3),
        (ModuleNotFoundError("no such", name="elsewhere"), 1),
        (OSError(28, "No space left on device"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_exit_codes(error, code):
    assert explain(error).code == code


def test_a_missing_package_comes_with_the_line_that_installs_it(lilliput, place, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx_ir", None)
    (place / "needs.py").write_text("import onnx_ir\n")
    ended = lilliput("inspect", "needs:build")
    assert ended.code == 3
    assert "pip install 'lilliput[onnx]'" in ended.err


def test_many_problems_fit_on_a_screen():
    error = ConfigError([Problem(f"rule {i}", "x" * 900) for i in range(50)], title="rules.yaml")
    failure = explain(error)
    assert failure.lines[0] == "error: rules.yaml: 50 problems"
    assert len(failure.lines) == 14 and "38 more" in failure.lines[-1]
    assert len(failure.data["problems"]) == 50


def test_json_has_the_error_too(lilliput, place):
    (place / "rules.yaml").write_text("- {op_type: [Linear], sparsity: 80}\n")
    ended = lilliput("config", "check", "rules.yaml", "--algorithm", "level", "--json")
    error = json.loads(ended.out)["error"]
    assert ended.code == error["exit_code"] == 2
    assert {p["path"] for p in error["problems"]} == {"rule 0 → op_type", "rule 0 → sparsity"}
    assert json.loads(lilliput("list", "--jsn", "--json").out)["error"]["kind"] == "UsageError"


def test_a_project_inside_the_prefix_of_python_is_the_users(tmp_path, monkeypatch):
    """As with a virtual environment in the project's own folder, or in ``/usr/src/app``."""
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr("sys.base_prefix", str(tmp_path))
    source = tmp_path / "torch" / "lilliput" / "net.py"
    source.parent.mkdir(parents=True)
    source.write_text("def fails():\n    return 1 / 0\n", encoding="utf-8")
    found: dict = {}
    exec(compile(source.read_text(), str(source), "exec"), found)
    with pytest.raises(ZeroDivisionError) as caught:
        found["fails"]()
    assert [x.name for x in own_frames(caught.value.__traceback__) if x.name == "fails"]


def test_packages_and_python_are_not_the_users():
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert not [x for x in own_frames(caught.value.__traceback__) if "json" in x.filename]
