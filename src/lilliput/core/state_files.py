"""A compression state as a folder: ``lilliput.json`` to read, and safetensors named after its content.

The JSON is replaced last and names the tensors that count, so that a crash at any moment leaves the
old state or the new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from lilliput.backends import backend_named
from lilliput.errors import StateError
from lilliput.files import locked_folder, make_folder, remove_stale, write_atomically

FORMAT = 1
NAME = "lilliput.json"
_SEPARATOR = "::"
_WHAT = "compression state"
_TENSORS = re.compile(r"state-[0-9a-f]{16}\.safetensors")
_ATTEMPTS = 20  # to read a state while another process replaces it again and again

Document = TypeVar("Document", bound=BaseModel)


class Strict(BaseModel):
    """The base of what is read from files: nothing extra, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Layer(Strict):
    type: str
    shape: list[int]
    config: dict[str, JsonValue]
    values: dict[str, JsonValue]


class _TensorFile(Strict):
    # Saving again removes this file: it must not be any other of the folder.
    file: Annotated[str, Field(pattern=f"^{_TENSORS.pattern}$")]
    sha256: str


class _Document(Strict):
    format: Literal[1]
    kind: Literal["compression state"]
    algorithm: str
    framework: Literal["torch", "keras"]
    layers: dict[str, _Layer]
    progress: dict[str, JsonValue]
    tensors: _TensorFile


def save_state(fields: dict[str, Any], folder: str | Path) -> None:
    """Write the fields of a state; refuse a folder that holds the state of another algorithm."""
    tensors = {
        f"{layer}{_SEPARATOR}{key}": tensor
        for layer, held in fields["tensors"].items()
        for key, tensor in held.items()
    }
    data = backend_named(fields["framework"]).dump_tensors(tensors)
    digest = hashlib.sha256(data).hexdigest()
    name = f"state-{digest[:16]}.safetensors"
    head = {"format": FORMAT, "kind": _WHAT}
    document = head | fields | {"tensors": {"file": name, "sha256": digest}}
    try:
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StateError(f"the config or progress of {fields['algorithm']}: {error}.") from error
    target = make_folder(folder)
    with locked_folder(target):
        earlier = _earlier_file(target, fields["algorithm"])
        write_atomically(target / name, data)
        write_atomically(target / NAME, text.encode())
        if earlier not in (None, name):
            (target / str(earlier)).unlink(missing_ok=True)
        remove_stale(target, _TENSORS, keep=name)


def _earlier_file(folder: Path, algorithm: str) -> str | None:
    """Return the tensor file of the state that is about to be replaced."""
    if not (folder / NAME).exists():
        return None
    earlier = read_document(folder, _Document, _WHAT)
    if earlier.algorithm != algorithm:
        raise StateError(
            f"{folder} holds the state of {earlier.algorithm}; choose another folder for {algorithm}."
        )
    return earlier.tensors.file


def load_state(folder: str | Path, framework: str | None = None) -> dict[str, Any]:
    """Read the fields of a state; refuse one that is damaged or from the future."""
    document, data = _read(Path(folder))
    fields = document.model_dump(exclude={"format", "kind", "tensors"})
    fields["framework"] = framework or document.framework
    tensors: dict[str, dict[str, Any]] = {}
    for path, tensor in backend_named(fields["framework"]).parse_tensors(data).items():
        layer, _, key = path.rpartition(_SEPARATOR)
        tensors.setdefault(layer, {})[key] = tensor
    return fields | {"tensors": tensors}


def _read(folder: Path) -> tuple[_Document, bytes]:
    """Return the JSON and the tensors that it names, both of the same moment."""
    seen: _Document | None = None
    for _ in range(_ATTEMPTS):
        document = read_document(folder, _Document, _WHAT)
        try:
            data = (folder / document.tensors.file).read_bytes()
        except OSError as error:
            if document != seen:  # perhaps another process has just replaced the state
                seen = document
                continue
            raise StateError(f"{folder}: no readable compression state ({error}).") from error
        if hashlib.sha256(data).hexdigest() != document.tensors.sha256:
            raise StateError(f"{folder}: the tensors are damaged (checksum differs).")
        return document, data
    raise StateError(f"{folder}: the state is replaced faster than it can be read; try again.")


def read_document(folder: Path, kind: type[Document], what: str, name: str = NAME) -> Document:
    """Return the JSON of a folder; refuse one that is damaged or from the future."""
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
