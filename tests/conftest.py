"""What holds for every run: the same tests in the same order, and at its end what was skipped, and why."""

from collections import Counter

import pytest


def pytest_collection_modifyitems(items):
    """Refuse sets of parameters: their order differs by process, and workers must agree on it."""
    for item in items:
        for mark in item.iter_markers("parametrize"):
            if any(isinstance(values, set | frozenset) for values in mark.args[1:]):
                raise pytest.UsageError(f"{item.nodeid}: parametrize over a list, not a set")


def pytest_terminal_summary(terminalreporter):
    """Print one line, also where nothing else is said about skipped tests."""
    reports = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"skipped: {list_reasons(map(reason_of, reports))}")


def reason_of(report):
    """Return why a test, or a whole file, was skipped."""
    place = report.longrepr
    text = place[2] if isinstance(place, tuple) else str(place)
    return text.removeprefix("Skipped: ").strip().rstrip(".")


def list_reasons(reasons):
    """Return reasons with their counts, the most frequent first."""
    counted = Counter(reasons).most_common()
    return ", ".join(f"{count} ({reason})" for reason, count in counted) or "none"
