"""A compression state as a folder: readable ``lilliput.json`` and safetensors; see :mod:`lilliput.store`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from lilliput.errors import StateError
from lilliput.files import locked_folder, make_folder, remove_stale
from lilliput.frameworks import backend_named
from lilliput.store import (
    FORMAT,
    NAME,
    STATE_FILE,
    StateFile,
    Strict,
    digest_of,
    file_of,
    read_document,
    write_pair,
)

_SEPARATOR = "::"
_WHAT = "compression state"
_ATTEMPTS = 20  # to read a state that another process keeps replacing


class _Layer(Strict):
    type: str
    shape: list[int]
    config: dict[str, JsonValue]
    values: dict[str, JsonValue]


class _Document(Strict):
    format: Literal[1]
    kind: Literal["compression state"]
    algorithm: str
    framework: Literal["torch", "keras"]
    layers: dict[str, _Layer]
    progress: dict[str, JsonValue]
    tensors: StateFile


def save_state(fields: dict[str, Any], folder: str | Path) -> None:
    """Write the fields of a state; raise if the folder contains the state of another algorithm."""
    tensors = {
        f"{layer}{_SEPARATOR}{key}": tensor
        for layer, held in fields["tensors"].items()
        for key, tensor in held.items()
    }
    data = backend_named(fields["framework"]).dump_tensors(tensors)
    file = file_of(StateFile, data)
    head = {"format": FORMAT, "kind": _WHAT}
    document = head | fields | {"tensors": file.model_dump()}
    try:
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StateError(f"the config or progress of {fields['algorithm']}: {error}.") from error
    target = make_folder(folder)
    with locked_folder(target):
        earlier = _earlier_file(target, fields["algorithm"])
        write_pair(target, NAME, text, file.file, data)
        if earlier not in (None, file.file):
            (target / str(earlier)).unlink(missing_ok=True)
        remove_stale(target, STATE_FILE, keep=file.file)


def _earlier_file(folder: Path, algorithm: str) -> str | None:
    """Return the tensor file of the state that is about to be replaced."""
    if not (folder / NAME).exists():
        return None
    earlier = read_document(folder, _Document, _WHAT)
    if earlier.algorithm != algorithm:
        raise StateError(
            f"{folder} already contains the state of {earlier.algorithm}; choose another folder for "
            f"{algorithm}."
        )
    return earlier.tensors.file


def load_state(folder: str | Path, framework: str | None = None) -> dict[str, Any]:
    """Read the fields of a state; raise if it is damaged or from a newer version."""
    document, data = _read(Path(folder))
    fields = document.model_dump(exclude={"format", "kind", "tensors"})
    fields["framework"] = framework or document.framework
    tensors: dict[str, dict[str, Any]] = {}
    for path, tensor in backend_named(fields["framework"]).parse_tensors(data).items():
        layer, _, key = path.rpartition(_SEPARATOR)
        tensors.setdefault(layer, {})[key] = tensor
    return fields | {"tensors": tensors}


def _read(folder: Path) -> tuple[_Document, bytes]:
    """Return the JSON document and its tensors, both of the same version."""
    seen: _Document | None = None
    for _ in range(_ATTEMPTS):
        document = read_document(folder, _Document, _WHAT)
        try:
            data = (folder / document.tensors.file).read_bytes()
        except OSError as error:
            if document != seen:  # another process may have just replaced the state
                seen = document
                continue
            raise StateError(f"{folder}: no readable compression state ({error}).") from error
        if digest_of(data) != document.tensors.sha256:
            raise StateError(f"{folder}: the tensors are damaged (checksum differs).")
        return document, data
    raise StateError(f"{folder}: the state is replaced faster than it can be read; try again.")
