"""Print what a search logs while it works."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from lilliput.cli.terminal import Terminal


@contextlib.contextmanager
def log_shown(terminal: Terminal) -> Iterator[None]:
    """Print the messages of the ``lilliput`` logger as notes."""
    log, handler = logging.getLogger("lilliput"), _Notes(terminal)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Notes(logging.Handler):
    """Print messages as notes."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(logging.INFO)
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        self.terminal.note(record.getMessage())
