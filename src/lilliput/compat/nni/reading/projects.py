"""Migrate whole projects: programs and config files, as a diff that is applied on request."""

from __future__ import annotations

import difflib
import os
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from lilliput.compat.nni.config.dialects import translate
from lilliput.compat.nni.config.target_quant_rules import is_of_v3
from lilliput.compat.nni.reading.check import FileReport, check_source, programs
from lilliput.compat.nni.reading.rewriting import rewrite
from lilliput.config.plain_text import BadFileError, dump, parse_text, read_bytes
from lilliput.errors import ConfigError
from lilliput.files import write_atomically

SUFFIXES = (".py", ".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Change:
    """The migration of one file, and the messages about it."""

    file: Path
    before: bytes
    after: bytes
    report: FileReport | None = None  # of a program
    notes: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """The change as a unified diff, empty if there is none."""
        if self.before == self.after:  # also if it is not UTF-8
            return ""
        old, new = (data.decode().splitlines(keepends=True) for data in (self.before, self.after))
        name = self.file.as_posix().lstrip("/")
        return "".join(_terminated(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")))

    def write(self) -> None:
        """Replace the file atomically; raise if it has changed since it was read."""
        if self.file.read_bytes() != self.before:
            raise ConfigError(f"{self.file} was changed in the meantime; run the migration again.")
        write_atomically(self.file, self.after)


def find_changes(paths: Iterable[str | os.PathLike[str]]) -> list[Change]:
    """Return the changes and messages of migrating files, and the files of folders.

    Files of folders that do not use NNI are skipped.
    """
    changes = []
    for path in map(Path, paths):
        if path.is_dir():
            found = [change for file in programs(path, SUFFIXES) if (change := _in_folder(file))]
            changes += [x for x in found if x.before != x.after or x.report or x.notes]
        else:
            changes.append(_migrated(path))
    return changes


def _in_folder(file: Path) -> Change | None:
    try:
        change = _migrated(file)
    except ConfigError:  # a file that only looks like one of ours
        return None
    uses_nni = change.report is not None and (change.report.verdicts or change.report.fault)
    return change if uses_nni or change.before != change.after or change.notes else None


def _migrated(file: Path) -> Change:
    if file.suffix != ".py":
        return _config_file(file)
    try:
        before = file.read_bytes()
        encoding, _ = tokenize.detect_encoding(BytesIO(before).readline)
        report = check_source(before.decode(encoding), file)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    is_read = not report.fault and encoding in ("utf-8", "utf-8-sig")
    is_plain = is_read and not before.startswith(b"\xef\xbb\xbf")
    return Change(file, before, rewrite(before) if is_plain else before, report)


def _config_file(file: Path) -> Change:
    try:
        before = read_bytes(file)
        value = parse_text(before, file.suffix)
        notes: list[str] = []
        after = _translated(value, notes)
        if not notes:
            return Change(file, before, before)
        if b"#" in before and file.suffix != ".json":
            left = "has comments, which rewriting would lose; see lilliput config migrate FILE"
            return Change(file, before, before, notes=(f"{file}: {left}",))
        return Change(
            file, before, dump(after, file.suffix), notes=tuple(f"{file}: {n}" for n in notes)
        )
    except BadFileError as error:
        raise ConfigError(str(error), title=str(file)) from error


def _translated(value: Any, notes: list[str]) -> Any:
    """Return a file's content with its lists of rules in the current keys, wherever they are."""
    if isinstance(value, dict):
        return {key: _translated(held, notes) for key, held in value.items()}
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        return value
    if any(map(is_of_v3, value)):
        return value  # its quantizers have other defaults than the current ones
    translation = translate(value)
    if translation.problems or not translation.notes or not _are_rules(translation.rules):
        return value
    notes += translation.notes
    return translation.rules


def _are_rules(rules: list[Any]) -> bool:
    """Whether all keys are those of a config language: other files have lists of mappings, too."""
    from lilliput.core.binding import keys_in_use

    known = keys_in_use()
    return all(key in known for rule in rules for key in rule)


def _terminated(lines: Iterable[str]) -> Iterator[str]:
    """Mark a last line without a newline, as diff does."""
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
