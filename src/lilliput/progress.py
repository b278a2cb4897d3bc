"""Progress for interactive use: a bar on a terminal, one line in a notebook, a few lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TextIO

log = logging.getLogger("lilliput")

_IN_A_LOG = 30.0  # seconds between two lines of a log
_IN_PLACE = 0.1  # seconds between two updates of a line that is overwritten


def track(items: Iterable[Any], text: str, show: bool = True) -> Iterator[Any]:
    """Yield items, and show how many are done.

    Examples
    --------
    >>> list(track([1, 2], "counting"))
    [1, 2]
    """
    if not show:
        yield from items
        return
    if sys.stderr.isatty() and not is_notebook():
        try:
            from rich.console import Console
            from rich.progress import track as rich_track
        except ModuleNotFoundError:
            pass
        else:
            yield from rich_track(items, text, console=Console(stderr=True), transient=True)
            return
    line = Line(text, len(items) if isinstance(items, Sized) else None)
    try:
        for item in items:
            yield item
            line.advance()
    finally:
        line.close()


def is_notebook() -> bool:
    """Whether output goes to the cell of a notebook.

    rich needs ipywidgets there, and warns without them; an overwritten line needs nothing.
    """
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class Line:
    """Text with a count: overwritten on a terminal and in a notebook, new lines in a log.

    Parameters
    ----------
    text : str
        The description.
    total : int, optional
        The number of items.
    """

    def __init__(self, text: str, total: int | None) -> None:
        self.text, self.total, self.done = text, total, 0
        # stderr is red in a notebook, as if something had failed.
        self.stream: TextIO = sys.stdout if is_notebook() else sys.stderr
        self.is_over = is_notebook() or self.stream.isatty()
        self.start = self.shown = time.monotonic()
        self.width = 0

    def advance(self) -> None:
        """Record that one more item is done."""
        self.done += 1
        now = time.monotonic()
        if now - self.shown >= (_IN_PLACE if self.is_over else _IN_A_LOG):
            self.shown = now
            self._write(now)

    def close(self) -> None:
        """Remove an overwritten line; lines of a log are kept."""
        if self.is_over and self.width:
            self.stream.write(f"\r{' ' * self.width}\r")
            self.stream.flush()

    def _write(self, now: float) -> None:
        of = f" of {self.total}" if self.total is not None else ""
        text = f"{self.text}: {self.done}{of}, {now - self.start:.0f} s"
        self.stream.write(f"\r{text:<{self.width}}" if self.is_over else f"{text}\n")
        self.stream.flush()
        self.width = max(self.width, len(text))


@contextmanager
def quiet(is_quiet: bool = True) -> Iterator[None]:
    """Suppress repeated warnings of consecutive steps, after the first one has issued them."""

    def is_grave(record: logging.LogRecord) -> bool:
        return not is_quiet or record.levelno >= logging.ERROR

    log.addFilter(is_grave)
    try:
        yield
    finally:
        log.removeFilter(is_grave)
