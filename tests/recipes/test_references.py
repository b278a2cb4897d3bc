"""module:function, found or explained."""

import pytest

from lilliput.calling import call
from lilliput.errors import ConfigError
from lilliput.recipes.references import resolve, resolve_function


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recipe_names.py").write_text("NUMBER = 1\ndef build():\n    return 5\n")
    (tmp_path / "recipe_broken.py").write_text("x = 1\nimport not_there_at_all\n")
    (tmp_path / "recipe_typo.py").write_text("def build(:\n")
    (tmp_path / "recipe_fails.py").write_text("\n1 / 0\n")
    return tmp_path


def test_a_function_beside_the_recipe_is_found(folder):
    assert resolve("recipe_names:build", "model", [folder])() == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "recipe_names:buidl",
            "model: module 'recipe_names' has no 'buidl'. Did you mean 'build'?",
        ),
        ("recipe_name:build", "there is no module 'recipe_name' .* Did you mean 'recipe_names'"),
        ("recipe_names", "model: received 'recipe_names', expected module:function"),
        ("recipe_names:NUMBER", "recipe_names:NUMBER is a int, expected a function"),
        (
            "recipe_broken:build",
            "recipe_broken.py, line 2: ModuleNotFoundError: .*not_there_at_all",
        ),
        ("recipe_typo:build", "recipe_typo.py, line 1: invalid syntax"),
        ("recipe_fails:build", "recipe_fails.py, line 2: ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_said(folder, text, message):
    with pytest.raises(ConfigError, match=message):
        resolve_function(text, "model", [folder])


def test_functions_get_the_extras_they_ask_for():
    assert call(lambda: 1, epoch=3) == 1
    assert call(lambda epoch: epoch, epoch=3) == 3
    assert call(lambda **all_: all_, epoch=3) == {"epoch": 3}
    assert call(lambda epoch: epoch, "first", epoch=3) == "first"


def test_a_project_whose_folder_is_called_importlib_is_told_its_line(tmp_path):
    folder = tmp_path / "importlib"
    folder.mkdir()
    (folder / "recipe_in_importlib.py").write_text("\n\n1 / 0\n")
    with pytest.raises(ConfigError, match=r"recipe_in_importlib\.py, line 3: ZeroDivisionError"):
        resolve("recipe_in_importlib:build", "model", [folder])
