import pytest

from lilliput.printing import printable, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("conv1.weight", "conv1.weight"),
        ("ünïcode 层 🙂", "ünïcode 层 🙂"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\nb\rc\td\x00", "a\\nb\\rc\\td\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
    ],
)
def test_what_a_terminal_would_act_upon_is_escaped(text, expected):
    assert printable(text) == expected


class Raises:
    def __repr__(self):
        raise RuntimeError("no")


class NotText:
    def __repr__(self):
        return 3


class Endless:
    def __repr__(self):
        return repr(self)


def test_any_value_can_be_shown():
    for value in (Raises(), NotText(), Endless(), 10**5000, [Raises()], {"a": Raises()}):
        assert 0 < len(shown(value)) <= 80
    looped = []
    looped.append(looped)
    assert shown(looped) and shown("x" * 10**7) == "'" + "x" * 76 + "..."


def test_values_of_a_config_look_as_the_user_wrote_them():
    value = {"op_types": ["Conv2d", "Linear"], "sparsity": 0.8}
    assert shown(value) == repr(value)
    assert shown("a\x1b[0m") == r"'a\x1b[0m'"
