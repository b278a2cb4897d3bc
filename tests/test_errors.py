import pytest

from lilliput import errors
from lilliput.errors import ConfigError, LilliputError, Problem, nearest


def test_every_error_belongs_to_the_family():
    classes = [x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, Exception)]
    assert len(classes) >= 8
    assert all(issubclass(cls, LilliputError) for cls in classes)


def test_config_error_is_a_value_error_and_keeps_all_problems():
    problems = [Problem("rule 0 → sparsity", "too large."), Problem("rule 1", "not a dict.")]
    error = ConfigError(problems, title="LevelPruner")
    assert isinstance(error, ValueError)
    assert error.problems == tuple(problems)
    assert str(error).splitlines() == [
        "LevelPruner: 2 problems",
        "  - rule 0 → sparsity: too large.",
        "  - rule 1: not a dict.",
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("conv2d", " Did you mean 'Conv2d'?"), ("Lineer", " Did you mean 'Linear'?"), ("xyz", "")],
)
def test_nearest_ignores_case_and_gives_up_when_nothing_is_close(name, hint):
    assert nearest(name, ["Conv2d", "Linear"]) == hint
