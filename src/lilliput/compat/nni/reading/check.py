"""Report which parts of NNI a program uses and whether they run here, without running it.

Examples
--------
>>> from pathlib import Path
>>> source = "from nni.compression.torch import L1FilterPruner"
>>> print(check_source(source, Path("train.py")))
train.py:1: nni.compression.torch.L1FilterPruner: runs, spelled today lilliput.torch.L1NormPruner
"""

from __future__ import annotations

import ast
import os
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lilliput.compat.nni.reading.judging import Verdict, judge_call, judge_name
from lilliput.compat.nni.reading.literals import judge_rules
from lilliput.compat.nni.reading.uses import find_uses
from lilliput.errors import ConfigError

_LEFT_OUT = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"}


@dataclass(frozen=True)
class FileReport:
    """The report on one file."""

    file: Path
    verdicts: tuple[Verdict, ...] = ()
    fault: str = ""  # why it cannot be read

    @property
    def runs(self) -> bool:
        """Whether everything that it uses runs here."""
        return not self.fault and all(verdict.runs for verdict in self.verdicts)

    def __str__(self) -> str:
        if self.fault:
            return f"{self.file}: {self.fault}"
        return "\n".join(f"{self.file}:{verdict}" for verdict in self.verdicts)


def check_source(source: str, file: Path) -> FileReport:
    """Report on the source of one program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program's own, such as invalid escapes
            tree = ast.parse(source, str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return FileReport(file, fault=f"is not a program that Python can read: {error}")
    uses = find_uses(tree)
    verdicts = [judge_name(use) for use in uses.names]
    verdicts += [verdict for call in uses.calls for verdict in judge_call(call)]
    verdicts += [verdict for rules in uses.rules for verdict in judge_rules(rules)]
    ordered = sorted(dict.fromkeys(verdicts), key=lambda verdict: verdict.line)
    return FileReport(file, tuple(ordered))


def check_file(file: Path) -> FileReport:
    """Report on one program."""
    try:
        with tokenize.open(file) as stream:  # as Python itself reads it
            source = stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return FileReport(file, fault=f"cannot be read: {error}")
    return check_source(source, file)


def check_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[FileReport]:
    """Report on programs, and on all programs in folders; those without NNI are skipped in folders."""
    for path in map(Path, paths):
        if not path.is_dir():
            yield check_file(path)
            continue
        for file in programs(path):
            report = check_file(file)
            if report.verdicts or report.fault:
                yield report


def programs(folder: Path, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    """Return the files below a folder, without those of environments and caches."""
    if not folder.exists():
        raise ConfigError(f"there is no file or folder {str(folder)!r}.")
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in suffixes
        and file.is_file()
        and not any(
            part in _LEFT_OUT or part.startswith(".")
            for part in file.relative_to(folder).parts[:-1]
        )
    )


def summary(reports: Iterable[FileReport]) -> str:
    """Return one line on all files together."""
    every = list(reports)
    uses = [verdict for report in every for verdict in report.verdicts]
    missing = sum(not verdict.runs for verdict in uses)
    faults = sum(bool(report.fault) for report in every)
    plural = ["" if len(x) == 1 else "s" for x in (uses, every)]
    text = f"{len(uses)} use{plural[0]} of NNI in {len(every)} file{plural[1]}: "
    verb = "is" if missing == 1 else "are"
    text += "all run" if not missing else f"{len(uses) - missing} run, {missing} {verb} not here"
    return f"{text}; {faults} cannot be read" if faults else text
