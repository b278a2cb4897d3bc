"""Progress of a run: a bar on a terminal, plain lines elsewhere, or a function of yours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from lilliput.progress import is_notebook


@dataclass(frozen=True)
class Event:
    """A unit of work that starts (``seconds`` is None) or is done.

    Parameters
    ----------
    number, total : int
        The number of the unit, from 1, and the number of units.
    text : str
        Its description: ``'prune (agp): epoch 2 of 5'``.
    seconds : float, optional
        Its duration.
    metric : float, optional
        The metric measured in it.
    """

    number: int
    total: int
    text: str
    seconds: float | None = None
    metric: float | None = None


Progress = Callable[[Event], Any]


def make_progress(progress: bool | Progress) -> Progress:
    """Return the function that receives each event."""
    if callable(progress):
        return progress
    if not progress:
        return lambda event: None
    if sys.stderr.isatty() and not is_notebook():
        try:
            return _Bar()
        except ModuleNotFoundError:  # rich is part of the command line
            pass
    return _Lines(sys.stdout if is_notebook() else sys.stderr)


class _Lines:
    """One line per completed unit."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __call__(self, event: Event) -> None:
        if event.seconds is not None:
            width = len(str(event.total))
            metric = "" if event.metric is None else f", metric {event.metric:.4f}"
            print(
                f"[{event.number:{width}}/{event.total}] {event.text} ({event.seconds:.1f} s{metric})",
                file=self.stream,
                flush=True,
            )


class _Bar:
    """A bar at the bottom, with lines of measurements above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
        self.task: Any = None

    def __call__(self, event: Event) -> None:
        if self.task is None:
            self.task = self.bar.add_task("", total=event.total, completed=event.number - 1)
            self.bar.start()
        is_done = event.seconds is not None
        done = event.number if is_done else event.number - 1
        self.bar.update(self.task, completed=done, description=event.text)
        if event.metric is not None:
            text = event.text.removesuffix(": measure")
            self.bar.console.print(f"{text}: metric {event.metric:.4f}", highlight=False)

    def close(self) -> None:
        """Restore the terminal."""
        self.bar.stop()
