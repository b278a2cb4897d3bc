"""Pause Python's garbage collector while something large is built.

Recording, analysing and copying a model creates tens of thousands of long-lived objects, which would make
Python's garbage collector scan all objects of the process several times. That takes longer than the work
itself. Reference counting goes on, and collections are made up for afterwards.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Start no garbage collection inside the block.

    Examples
    --------
    >>> with uncollected():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
