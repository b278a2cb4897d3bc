"""A compression state as a folder: ``lilliput.json`` to read, and safetensors named after its content.

The JSON is replaced last and names the tensors that count, so that a crash at any moment leaves the
old state or the new one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from lilliput.backends import backend_named
from lilliput.errors import StateError
from lilliput.files import write_atomically

FORMAT = 1
NAME = "lilliput.json"
_SEPARATOR = "::"
_WHAT = "compression state"

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
    file: str
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
    target = Path(folder)
    earlier = read_document(target, _Document, _WHAT) if (target / NAME).exists() else None
    if earlier is not None and earlier.algorithm != fields["algorithm"]:
        raise StateError(
            f"{target} holds the state of {earlier.algorithm}; choose another folder for "
            f"{fields['algorithm']}."
        )
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
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / name, data)
    write_atomically(target / NAME, text.encode())
    if earlier is not None and earlier.tensors.file != name:
        (target / Path(earlier.tensors.file).name).unlink(missing_ok=True)


def load_state(folder: str | Path, framework: str | None = None) -> dict[str, Any]:
    """Read the fields of a state; refuse one that is damaged or from the future."""
    target = Path(folder)
    document = read_document(target, _Document, _WHAT)
    try:
        data = (target / Path(document.tensors.file).name).read_bytes()
    except OSError as error:
        raise StateError(f"{target}: no readable compression state ({error}).") from error
    if hashlib.sha256(data).hexdigest() != document.tensors.sha256:
        raise StateError(f"{target}: the tensors are damaged (checksum differs).")
    fields = document.model_dump(exclude={"format", "kind", "tensors"})
    fields["framework"] = framework or document.framework
    tensors: dict[str, dict[str, Any]] = {}
    for path, tensor in backend_named(fields["framework"]).parse_tensors(data).items():
        layer, _, key = path.rpartition(_SEPARATOR)
        tensors.setdefault(layer, {})[key] = tensor
    return fields | {"tensors": tensors}


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
