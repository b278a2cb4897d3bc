"""``lilliput config migrate``: translate config lists and whole projects written for NNI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lilliput.cli.rules import to_yaml
from lilliput.cli.terminal import Terminal
from lilliput.errors import ConfigError, nearest

Algorithm = Annotated[
    str | None,
    typer.Option("--algorithm", "-a", help="The algorithm of the config list: 'lilliput list'."),
]


def migrate(
    terminal: Terminal,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A config list of NNI v0 to v3, YAML or JSON; or programs and folders of both.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it to this file instead of printing it."
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", "--apply", help="Apply the changes instead of only showing the diff."
        ),
    ] = False,
    algorithm: Algorithm = None,
    framework: Annotated[
        str, typer.Option("--framework", help="The section of the file to use: torch or keras.")
    ] = "torch",
) -> None:
    """Translate config lists of any NNI generation, and programs that contain them."""
    if framework not in ("torch", "keras"):
        hint = nearest(framework, ("torch", "keras"))
        raise ConfigError(f"--framework: received {framework!r}, expected torch or keras.{hint}")
    file = files[0]
    if len(files) > 1 or write or file.suffix == ".py" or file.is_dir():
        if output is not None or algorithm is not None:
            raise ConfigError(
                "--output and --algorithm require a single config list, without --write."
            )
        _migrate_project(terminal, files, write)
    else:
        _migrate_list(terminal, file, output, algorithm, framework)


def _migrate_list(
    terminal: Terminal, file: Path, output: Path | None, algorithm: str | None, framework: str
) -> None:
    from lilliput.compat.nni.config.dialects import translate
    from lilliput.config.files import read_rules, write_rules
    from lilliput.core.binding import names_of
    from lilliput.registry import find_algorithm

    names = names_of(find_algorithm(algorithm)) if algorithm else []
    translation = translate(read_rules(file, names, framework))
    if translation.problems:
        raise ConfigError(translation.problems, title=str(file))
    for note in translation.notes:
        terminal.note(f"note: {note}")
    data = {"rules": translation.rules, "notes": translation.notes, "file": output}
    if output is None or terminal.dry_run:
        terminal.result(data, to_yaml(translation.rules))
        return
    write_rules(translation.rules, output)
    terminal.result(data, str(output))


def _migrate_project(terminal: Terminal, paths: list[Path], write: bool) -> None:
    from lilliput.compat.nni.reading.projects import find_changes

    changes = find_changes(paths)
    changed = [change for change in changes if change.before != change.after]
    for change in changes:
        for note in change.notes:
            terminal.note(f"note: {note}")
        for verdict in change.report.verdicts if change.report else ():
            if not verdict.runs:
                terminal.note(f"note: {change.file}:{verdict}")
    is_written = write and not terminal.dry_run
    if is_written:
        for change in changed:
            change.write()
    verb = "changed" if is_written else "to change"
    data = {"files": [_entry(change) for change in changes], "written": is_written}
    summary = f"{len(changed)} of {len(changes)} files {verb}"
    hint = "" if is_written or not changed else "; --write changes them"
    terminal.result(data, *(change.diff.rstrip() for change in changed), f"{summary}{hint}")


def _entry(change: Any) -> dict[str, Any]:
    verdicts = change.report.verdicts if change.report else ()
    uses = [{"line": v.line, "name": v.name, "runs": v.runs, "text": v.text} for v in verdicts]
    return {
        "file": change.file,
        "is_changed": change.before != change.after,
        "diff": change.diff,
        "uses": uses,
        "notes": list(change.notes),
    }
