"""docs/cli.md shows commands that exist, and what they print."""

import re

import pytest
from page import PAGE, filled, in_the_example, shown_commands


def test_every_command_is_on_the_page(lilliput):
    shown = {words[0] for words in shown_commands()}
    listed = re.findall(r"^  (\w+) +[A-Z]", lilliput().out.partition("Commands:")[2], re.MULTILINE)
    assert len(listed) == 14 and shown >= set(listed)
    configs = {words[1] for words in shown_commands() if words[0] == "config"}
    assert configs == {"check", "explain", "schema", "migrate"}


def test_every_shown_option_exists(lilliput):
    for words in shown_commands():
        ended = lilliput(*words, "--help")
        assert ended.code == 0, (words, ended.err)


def without_figures(text):
    """Leave out what differs from machine to machine and from run to run."""
    text = text.partition("### lilliput doctor")[0]
    return re.sub(
        r"[\d.,]+( s| ms)?|[+±÷×–-]+|threads?|no faster here|faster|slower here|larger|smaller",
        "",
        text,
    ).split()


@pytest.mark.slow
def test_the_page_shows_what_is_printed():
    from typer.main import get_command

    from lilliput.cli.app import make_app

    text = PAGE.read_text(encoding="utf-8")
    with in_the_example():
        today = filled(get_command(make_app()).run, text)
    assert without_figures(today) == without_figures(text)
