"""Turn an exception into a message for the user: one screen with the location and the fix."""

from __future__ import annotations

import errno
import linecache
import re
import site
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import typer

import lilliput
from lilliput.cli import command
from lilliput.errors import AlgorithmError, ConfigError, LilliputError, MissingExtraError
from lilliput.export.targets.table import packages
from lilliput.frames import is_code_of, is_inside

DONE, FAILED, BAD_INPUT, NOT_INSTALLED, UNPROVEN, INTERRUPTED = 0, 1, 2, 3, 4, 130

# the extra that installs a module
EXTRAS = {
    "torch": "torch",
    "keras": "keras",
    "numpy": "torch",
    "tensorflow": "litert",
    "sklearn": "demo",
    **{package.imported_as: package.extra for package in packages()},
}

_MOST_PROBLEMS = 12
_LONGEST = 400  # characters of one problem
_MOST_FRAMES = 4


@dataclass(frozen=True)
class Failure:
    """An exit code, the lines for people, and the same as data."""

    code: int
    lines: list[str]
    data: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the output of ``--json``."""
        return {"error": {"exit_code": self.code, **self.data, "text": "\n".join(self.lines)}}


def refuse(terminal: Any, text: str) -> NoReturn:
    """End with a failure after the result was shown; with ``--json``, that document has said it already."""
    if terminal.json:
        raise typer.Exit(FAILED)
    raise AlgorithmError(text)


def explain(error: BaseException, words: Sequence[str] = ()) -> Failure:
    """Return the failure of a command; ``words`` are its arguments.

    Examples
    --------
    >>> explain(MissingExtraError("pip install 'lilliput[onnx]'")).code
    3
    """
    kind = type(error).__name__
    missing = _missing_package(error)
    if missing:
        return Failure(NOT_INSTALLED, missing, {"kind": kind})
    if isinstance(error, ConfigError):
        problems = [{"path": p.path, "message": p.message} for p in error.problems]
        return Failure(BAD_INPUT, _config_lines(error), {"kind": kind, "problems": problems})
    if isinstance(error, OSError) and not _own_lines(error):
        lines = [f"error: {error}"]
        if error.errno == errno.ENOSPC:
            lines.append(
                "progress so far is kept: free some disk space, and continue with --resume"
            )
        return Failure(FAILED, lines, {"kind": kind})
    if isinstance(error, LilliputError):
        code = NOT_INSTALLED if isinstance(error, MissingExtraError) else FAILED
        lines = [f"error: {_cut(str(error), 1500)}", *_own_lines(error.__cause__)]
        return Failure(code, lines, {"kind": kind})
    return Failure(FAILED, _foreign_lines(error, words), {"kind": kind})


def _missing_package(error: BaseException) -> list[str]:
    """Return how to install the missing package, if it is one that we use."""
    cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if not isinstance(cause, ModuleNotFoundError) or isinstance(error, MissingExtraError):
        return []
    name = (cause.name or "").partition(".")[0]
    if name not in EXTRAS:
        return []
    return [
        f"error: {name} is not installed: pip install 'lilliput[{EXTRAS[name]}]'",
        *_own_lines(cause),
    ]


def _config_lines(error: ConfigError) -> list[str]:
    problems = error.problems
    if len(problems) <= 1:
        return [f"error: {_cut(str(error), 1500)}", *_own_lines(error.__cause__)]
    title = str(error).partition("\n")[0]
    shown = [f"  - {_cut(str(p), _LONGEST)}" for p in problems[:_MOST_PROBLEMS]]
    more = len(problems) - _MOST_PROBLEMS
    shown += [f"  … and {more} more; --json shows all of them"] if more > 0 else []
    return [f"error: {title}", *shown]


def _foreign_lines(error: BaseException, words: Sequence[str]) -> list[str]:
    """Report which user function failed and where, or that it is our bug."""
    reason = _cut("".join(traceback.format_exception_only(error)).strip(), 1000)
    frames = own_frames(error.__traceback__)
    if frames:
        name = _reference([frame.name for frame in frames], words)
        fix = "this is in your own code; --traceback shows the full traceback"
        return [f"error: {name} failed: {reason}", *_own_lines(error), fix]
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" (raised in {Path(x.filename).name}, line {x.lineno})" for x in place)
    return [
        f"error: {reason}{where}",
        "unexpected error, probably a bug in Lilliput; --traceback shows where",
    ]


def _reference(names: Sequence[str], words: Sequence[str]) -> str:
    """Return how the command line, or a recipe on it, names a function: ``evaluate: digits:accuracy``."""
    texts = [" ".join(words)]
    for word in words:
        if Path(word).suffix in (".yaml", ".yml", ".json") and Path(word).is_file():
            texts.append(Path(word).read_text(encoding="utf-8", errors="replace"))
    for name in names:
        reference = rf"([\w-]+)[\"']?[:\s]\s*[\"']?([\w.]+:(?:\w+\.)*{re.escape(name)})\b"
        found = next(filter(None, (re.search(reference, text) for text in texts)), None)
        if found:
            return f"{found[1]}: {found[2]}"
    return f"{names[0]}()"


def _own_lines(error: BaseException | None) -> list[str]:
    if error is None:
        return []
    lines = []
    for frame in own_frames(error.__traceback__)[-_MOST_FRAMES:]:
        lines.append(f"  {_shortest(frame.filename)}, line {frame.lineno}, in {frame.name}")
        lines += [f"    {frame.line}"] if frame.line else []
    return lines


def own_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """Return the lines of a traceback in the user's code: not in ours, Python's, or a package's."""
    linecache.checkcache()
    frames = traceback.extract_tb(trace)
    starts = [i for i, frame in enumerate(frames) if frame.filename == command.__file__]
    inside = frames[starts[-1] + 1 :] if starts else frames
    return [frame for frame in inside if _is_own(frame.filename)]


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    # Never the prefixes: projects may be in them, too (/usr/src/app, a venv in the project's
    # folder).
    foreign = [path for key, path in sysconfig.get_paths().items() if key != "data"]
    foreign += [*site.getsitepackages(), site.getusersitepackages()]
    return not is_code_of(filename, lilliput) and not any(is_inside(filename, x) for x in foreign)


def _shortest(filename: str) -> str:
    """Return a path relative to the working directory, if it is inside."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
