"""A progress bar where somebody can see it: on a terminal, if rich is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any


def track(items: Iterable[Any], text: str, show: bool = True) -> Iterator[Any]:
    """Yield items, and show how many are done.

    Examples
    --------
    >>> list(track([1, 2], "counting"))
    [1, 2]
    """
    if show and sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import track as rich_track
        except ImportError:
            pass
        else:
            yield from rich_track(items, text, console=Console(stderr=True), transient=True)
            return
    yield from items
