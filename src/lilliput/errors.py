"""All errors for users, in one family.

Catch :class:`LilliputError` to catch them all. Each subclass also derives from the appropriate built-in
exception, so ``except ValueError`` around a bad config works as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from lilliput.printing import printable

MOST_PROBLEMS = 200  # reported for one config list


class LilliputError(Exception):
    """Base class of all errors that Lilliput raises deliberately."""


@dataclass(frozen=True)
class Problem:
    """One problem in a config list.

    Parameters
    ----------
    path : str
        The location in readable form: ``"rule 2 → op_types"``.
    message : str
        What was received, what was expected, and the fix.
    is_unmatched : bool
        Whether the only problem is that nothing in the model has such a name or type.
    """

    path: str
    message: str
    is_unmatched: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(LilliputError, ValueError):
    """A config list or config file is wrong; ``problems`` lists every fault found in it.

    Examples
    --------
    >>> print(ConfigError([Problem("rule 0 → sparsity", "received 80.")]))
    rule 0 → sparsity: received 80.
    """

    def __init__(self, problems: Iterable[Problem] | str, title: str = "") -> None:
        found = [Problem("", problems)] if isinstance(problems, str) else list(problems)
        self.problems: tuple[Problem, ...] = tuple(found)
        # A value or name from the user must not reach the terminal as an escape sequence.
        title = printable(title)
        lines = [printable(problem) for problem in found]
        if len(lines) == 1:
            text = f"{title}: {lines[0]}" if title else lines[0]
        else:
            many = len(lines) > MOST_PROBLEMS
            count = f"more than {MOST_PROBLEMS}" if many else f"{len(lines)}"
            listed = [f"  - {line}" for line in lines[:MOST_PROBLEMS]]
            text = "\n".join([f"{title or 'config'}: {count} problems", *listed])
        super().__init__(text)


class UnsupportedModelError(LilliputError, TypeError):
    """The model, or one layer of it, cannot be compressed as requested; the message names the layer."""


class StageError(LilliputError, RuntimeError):
    """A call came at the wrong time, such as ``export_model()`` before ``compress()``."""


class NothingToCutError(StageError):
    """``speedup`` found no channel that is zero in all the parameters that produce, scale or read it."""


class AlgorithmError(LilliputError, ValueError):
    """An algorithm returned something the engine cannot use, such as a mask of the wrong shape."""


class StateError(LilliputError, ValueError):
    """A saved compression state is damaged, too new, or belongs to another model."""


class WriteError(LilliputError, OSError):
    """A file or folder cannot be written: no space, no permission; the previous content is intact."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message)
        self.errno = None if cause is None else cause.errno


class ExportError(LilliputError, RuntimeError):
    """The compressed model cannot be written exactly in the requested format."""


class MissingExtraError(LilliputError, ImportError):
    """An optional dependency is not installed; the message says what to install."""


def nearest(name: object, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or an empty string.

    Examples
    --------
    >>> nearest("conv2d", ["Conv2d", "Linear"])
    " Did you mean 'Conv2d'?"
    """
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    close = get_close_matches(str(name).lower(), list(by_lower), n=1, cutoff=0.6)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
