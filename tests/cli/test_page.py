"""docs/cli.md shows commands that exist, and what they print."""

import re

import pytest
from page import PAGE, filled, in_the_example, shown_commands


def test_every_command_is_on_the_page(lilliput):
    shown = {words[0] for words in shown_commands()}
    listed = re.findall(r"^  (\w+) +[A-Z]", lilliput().out.partition("Commands:")[2], re.MULTILINE)
    assert len(listed) == 17 and shown >= set(listed)
    configs = {words[1] for words in shown_commands() if words[0] == "config"}
    assert configs == {"check", "explain", "schema", "migrate"}


def test_every_shown_option_exists(lilliput):
    for words in shown_commands():
        ended = lilliput(*words, "--help")
        assert ended.code == 0, (words, ended.err)


# What depends on the processor, or on what else the machine does: latencies, the verdict with its speed,
# and notes about instructions that a processor lacks.
MACHINE = re.compile(
    r"^(latency .*|.* on disk[ ,;.].*|note: .*(on this CPU|saturat|coarser|compare speed|not timed).*)$",
    re.MULTILINE,
)
FIGURE = re.compile(r"[\d.,]+(e[+-]?\d+)?( s| ms| min| h)?|[+±÷×–-]+|threads?|noisy")


def without_figures(text):
    """Leave out what differs from machine to machine and from run to run."""
    text = text.partition("### lilliput doctor")[0]
    return FIGURE.sub("", MACHINE.sub("", text)).split()


def test_the_page_is_compared_without_what_a_processor_decides():
    here, elsewhere = (
        f"bytes on disk  341,816  29,266  ÷ 11.7\nlatency p50  2 ms  {ratio}\n{note}{verdict}\nfile a.onnx"
        for ratio, note, verdict in (
            (
                "÷ 1.5",
                "note: coarser weights on this CPU: 0\n",
                "11.7× smaller on disk and 2× faster.",
            ),
            ("noisy", "", "11.7× smaller on disk; speed not compared (noisy: two readings of b)."),
        )
    )
    assert without_figures(here) == without_figures(elsewhere)
    assert without_figures(here) == ["file", "aonnx"]


def test_the_page_lists_the_algorithms_of_today(lilliput):
    listed = lilliput("list").out.split()
    shown = PAGE.read_text(encoding="utf-8").split()
    at = shown.index("agp", shown.index("lilliput", shown.index("Help"))) - listed.index("agp")
    assert shown[at : at + len(listed)] == listed  # else: python tests/cli/page.py


@pytest.mark.slow
def test_the_page_shows_what_is_printed(monkeypatch):
    from typer.main import get_command

    from lilliput.cli.app import make_app
    from lilliput.recipes import finish

    monkeypatch.setattr(finish, "_QUICK", float("inf"))  # on a busy machine nothing is quick
    text = PAGE.read_text(encoding="utf-8")
    with in_the_example():
        today = filled(get_command(make_app()).run, text)
    assert without_figures(today) == without_figures(text)
