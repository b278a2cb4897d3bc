"""Keep torch from running a whole transformer layer as one fused kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_lock = Lock()
_users = 0
_was_enabled = True


@contextmanager
def calling_modules() -> Iterator[None]:
    """A context in which transformer layers call their parts.

    The switch is one for all threads: the first to come turns it off, the last to go turns it on.
    """
    global _users, _was_enabled
    with _lock:
        if _users == 0:
            _was_enabled = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.backends.mha.set_fastpath_enabled(_was_enabled)
