"""Run a script or a module with NNI's import paths in place; see :mod:`lilliput.compat.nni`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from lilliput.compat.nni.imports.finder import install
from lilliput.errors import LilliputError

USAGE = """\
usage: python -m lilliput.compat.nni [--force] script.py [arguments ...]
       python -m lilliput.compat.nni [--force] -m module [arguments ...]
       python -m lilliput.compat.nni --check file.py|folder ...

Run a program that was written for NNI's model compression, unchanged, with Lilliput.

  --force   run it with Lilliput even though the real NNI is installed
  --check   run nothing: list what the programs use of NNI, and whether it runs here;
            the exit code is 0 if all of it does, 1 if not
"""


def main(arguments: list[str]) -> None:
    """Install the shim and run the named program as ``__main__``."""
    force = arguments[:1] == ["--force"]
    rest = arguments[1:] if force else arguments
    if rest[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return
    if rest[:1] == ["--check"] and rest[1:]:
        raise SystemExit(_check(rest[1:]))
    as_module = rest[:1] == ["-m"]
    program = rest[1:] if as_module else rest
    if not program or program[0].startswith("-"):
        received = f"\nreceived: {' '.join(arguments)}" if arguments else ""
        print(f"{USAGE}{received}", file=sys.stderr)
        raise SystemExit(2)
    try:
        install(force)
    except LilliputError as error:
        raise SystemExit(f"lilliput.compat.nni: {error}") from error
    sys.argv[:] = program
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        return
    if not Path(program[0]).exists():
        raise SystemExit(f"lilliput.compat.nni: there is no file {program[0]!r}.")
    # "python -m" puts the working directory there, "python script.py" the script's folder.
    if Path(program[0]).is_file() and not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(program[0]))  # noqa: PTH120
    runpy.run_path(program[0], run_name="__main__")


def _check(paths: list[str]) -> int:
    """Print what programs use of NNI; return the exit code."""
    from lilliput.compat.nni.reading.check import check_files, summary

    try:
        reports = []
        for report in check_files(paths):
            print(report)
            reports.append(report)
    except LilliputError as error:
        print(f"lilliput.compat.nni: {error}", file=sys.stderr)
        return 1
    print(summary(reports))
    return 0 if all(report.runs for report in reports) else 1


if __name__ == "__main__":
    main(sys.argv[1:])
