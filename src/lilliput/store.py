"""A folder with a JSON document and the tensors that it names, safe against crashes and damage.

The tensors are in a file that is named after their content. The JSON is written last, atomically, so that
a crash at any moment leaves the old pair or the new one; a checksum detects damage.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lilliput.errors import StateError
from lilliput.files import write_atomically

FORMAT = 1
NAME = "lilliput.json"
STATE_FILE = re.compile(r"state-[0-9a-f]{16}\.safetensors")
MODEL_FILE = re.compile(r"model-[0-9a-f]{16}\.safetensors")


class Strict(BaseModel):
    """Base class of data read from files: no extra keys, no conversion."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StateFile(Strict):
    """The tensors of a state, as named in its document."""

    # Saving again removes this file, so it must not be any other file of the folder.
    file: Annotated[str, Field(pattern=f"^{STATE_FILE.pattern}$")]
    sha256: str


class ModelFile(Strict):
    """The weights of a model, as named in its document."""

    file: Annotated[str, Field(pattern=f"^{MODEL_FILE.pattern}$")]
    sha256: str


Document = TypeVar("Document", bound=BaseModel)
File = TypeVar("File", StateFile, ModelFile)


def digest_of(data: bytes) -> str:
    """Return the checksum of a file's content."""
    return hashlib.sha256(data).hexdigest()


def file_of(kind: type[File], data: bytes) -> File:
    """Return the entry for tensors in a document.

    Examples
    --------
    >>> file_of(StateFile, b"").file
    'state-e3b0c44298fc1c14.safetensors'
    """
    prefix, digest = ("state" if kind is StateFile else "model"), digest_of(data)
    return kind(file=f"{prefix}-{digest[:16]}.safetensors", sha256=digest)


def write_pair(folder: Path, name: str, document: str, tensors: str, data: bytes) -> None:
    """Write tensors, and then the document that names them."""
    write_atomically(folder / tensors, data)
    write_atomically(folder / name, document.encode())


def read_document(folder: Path, kind: type[Document], what: str, name: str = NAME) -> Document:
    """Return the JSON of a folder; raise if it is damaged or from a newer version."""
    path = folder / name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{folder}: no readable {what} ({error}).") from error
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise StateError(
            f"{path}: written in format {version}, this version of Lilliput reads up to {FORMAT}; "
            "upgrade Lilliput."
        )
    try:
        return kind.model_validate(content)
    except (ValidationError, RecursionError) as error:
        raise StateError(f"{path}: no readable {what} ({error}).") from error


def read_tensors(path: Path, sha256: str, what: str) -> bytes:
    """Return the bytes of a file of tensors; raise if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StateError(f"{path.parent}: no readable {what} ({error}).") from error
    if digest_of(data) != sha256:
        raise StateError(
            f"{path}: the {what} are damaged (checksum differs); restore the folder from a backup, or delete "
            "it to start over."
        )
    return data
