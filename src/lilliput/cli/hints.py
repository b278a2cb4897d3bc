"""What a module has, where a message only says what it has not."""

from __future__ import annotations

import re
import sys

from lilliput.errors import Problem

_NO_SUCH_NAME = re.compile(r"module '([\w.]+)' has no '\w+'\.$")
_MOST = 8


def with_hint(problem: Problem) -> Problem:
    """Return a problem with the functions of the module it speaks of, if it has no hint yet.

    Examples
    --------
    >>> with_hint(Problem("data", "module 'lilliput.cli.hints' has no 'batches'.")).message
    "module 'lilliput.cli.hints' has no 'batches'. It has: with_hint."
    """
    found = _NO_SUCH_NAME.search(problem.message)
    module = sys.modules.get(found[1]) if found else None
    if module is None:
        return problem
    names = [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
    ]
    more = ", …" if len(names) > _MOST else ""
    listed = f"It has: {', '.join(names[:_MOST])}{more}." if names else "It has no functions."
    return Problem(problem.path, f"{problem.message} {listed}")
