"""Progress is a bar, one line that changes, or few lines, as the place where it is read can bear."""

import io
import sys
import types

import pytest

from lilliput import progress


class Clock:
    """Seconds that pass only between items."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)

    def items(self, count, seconds):
        for number in range(count):
            self.now += seconds
            yield number


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def in_a_notebook(monkeypatch):
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_a_log_gets_a_line_now_and_then(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(progress.track(clock.items(100, 1), "calibrating")) == list(range(100))
    assert stream.getvalue().splitlines() == [
        "calibrating: 30, 30 s",
        "calibrating: 60, 60 s",
        "calibrating: 90, 90 s",
    ]


def test_what_is_quick_says_nothing_in_a_log(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    list(progress.track(range(5), "calibrating"))
    assert stream.getvalue() == ""


def test_a_notebook_gets_one_line_that_is_written_over_and_removed(clock, monkeypatch):
    in_a_notebook(monkeypatch)
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    list(progress.track(clock.items(3, 1), "rounding"))
    lines = out.getvalue().split("\r")
    assert lines[1:4] == ["rounding: 1, 1 s", "rounding: 2, 2 s", "rounding: 3, 3 s"]
    assert not lines[-2].strip() and lines[-1] == "" and "\n" not in out.getvalue()
    assert err.getvalue() == ""


def test_a_terminal_without_rich_gets_one_line(clock, monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    list(progress.track([1] * 3, "rounding"))
    assert screen.getvalue() == ""  # quicker than a tenth of a second
    items = list(clock.items(2, 1))
    for _ in progress.track(items, "rounding"):
        clock.now += 1
    assert screen.getvalue().startswith("\rrounding: 1 of 2, 1 s\rrounding: 2 of 2, 2 s\r")


def test_no_progress_is_none(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_IN_A_LOG", 0.0)
    list(progress.track(range(3), "calibrating", show=False))
    assert stream.getvalue() == ""


def test_an_end_before_the_last_item_cleans_up(clock, monkeypatch):
    in_a_notebook(monkeypatch)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    for number in progress.track(clock.items(3, 1), "rounding"):
        if number == 1:
            break
    assert out.getvalue().endswith("\r")
