"""The folder of a run: ``run.json`` describes everything, and names the current file of tensors.

``run.json`` is replaced last, atomically. Whenever a run is killed, the folder contains the
state after a whole number of units of work; unreferenced files are removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from lilliput.errors import StateError
from lilliput.files import TEMPORARY
from lilliput.store import (
    STATE_FILE,
    StateFile,
    Strict,
    file_of,
    read_document,
    read_tensors,
    write_pair,
)

NAME = "run.json"
LOCK = ".lock"
_SHRUNK = re.compile(r"shrunk-\d+")


class CompressorEntry(Strict):
    """An attached compressor as written by its step, and its state."""

    verb: Literal["prune", "quantize"]
    algorithm: str
    config: JsonValue
    options: dict[str, JsonValue]
    state: dict[str, JsonValue] = Field(default_factory=dict)


class FactorizerEntry(Strict):
    """A completed factorization: its rules name the layers and their ranks."""

    algorithm: str
    config: list[dict[str, JsonValue]]
    shrunk: int  # number of shrinking plans before it


class ModelEntry(Strict):
    """How to rebuild the model: factory, then factorizations and plans of shrinking, then compressors."""

    framework: Literal["torch", "keras"]
    factory: str
    folder: str
    seed: int
    shrunk: list[Annotated[str, Field(pattern=rf"^{_SHRUNK.pattern}$")]] = Field(
        default_factory=list
    )
    factorized: list[FactorizerEntry] = Field(default_factory=list)
    compressors: list[CompressorEntry] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit entries that no step of the run has created, so that files of older runs do not change."""
        written: dict[str, Any] = write(self)
        if not self.factorized:
            written.pop("factorized", None)
        return written


class Document(Strict):
    """The content of ``run.json``."""

    format: Literal[1]
    kind: Literal["recipe run"]
    text: str
    made_from: dict[str, JsonValue]
    threads: int | None
    done: int
    units: int
    is_finished: bool
    model: ModelEntry
    optimizer: JsonValue
    inputs: JsonValue
    log: dict[str, JsonValue]
    tensors: StateFile


@dataclass
class Checkpoint:
    """A run after a number of units of work; ``tensors`` are by name, for any framework."""

    text: str
    made_from: dict[str, Any]
    threads: int | None
    model: ModelEntry
    units: int
    done: int = 0
    is_finished: bool = False
    optimizer: Any = None
    inputs: Any = None
    log: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Replace the checkpoint of a folder, and remove files it no longer needs."""
        from lilliput.frameworks import backend_named

        data = backend_named(self.model.framework).dump_tensors(self.tensors)
        file = file_of(StateFile, data)
        fields = {k: v for k, v in vars(self).items() if k != "tensors"}
        document = Document(format=1, kind="recipe run", tensors=file, **fields)
        write_pair(folder, NAME, document.model_dump_json(indent=1), file.file, data)
        remove_leftovers(folder, {file.file, *self.model.shrunk})

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """Read the checkpoint of a folder; raise if it is damaged or from a newer version."""
        from lilliput.frameworks import backend_named

        document = read_run(folder)
        path = folder / document.tensors.file
        data = read_tensors(path, document.tensors.sha256, "tensors of the run")
        fields = {x: getattr(document, x) for x in Document.model_fields}
        for name in ("format", "kind", "tensors"):
            del fields[name]
        tensors = backend_named(document.model.framework).parse_tensors(data)
        return cls(**fields, tensors=tensors)


def read_run(folder: Path) -> Document:
    """Return the content of ``run.json`` in a folder."""
    return read_document(folder, Document, "run", NAME)


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file or folder that ``run.json`` names, if it is in the run's folder."""
    path = folder / name
    if path.resolve().parent != folder.resolve():
        raise StateError(f"{folder}: {NAME} names {name!r}, which is not in the folder of the run.")
    return path


def remove_leftovers(folder: Path, kept: set[str]) -> None:
    """Remove files of earlier checkpoints, and partial files of a killed run."""
    for path in folder.iterdir():
        is_old = STATE_FILE.fullmatch(path.name) or _SHRUNK.fullmatch(path.name)
        if path.name not in kept and (is_old or TEMPORARY.fullmatch(path.name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def is_ours_only(folder: Path) -> bool:
    """Whether a folder is empty, or contains only the files of a run that was killed immediately."""
    names = [path.name for path in folder.iterdir()]
    return all(
        name == LOCK or any(x.fullmatch(name) for x in (STATE_FILE, TEMPORARY, _SHRUNK))
        for name in names
    )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from running in a folder; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        yield
        return
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # Not flock: its locks are inherited, and workers of data loaders outlive a killed run.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            f"{folder}: another process is running in this folder; wait for it, or choose another "
            "folder."
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)
