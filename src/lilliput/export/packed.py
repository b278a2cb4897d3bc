"""The bytes of an ONNX file and, above 2 GB (the limit of protobuf), a second file with its weights.

The second file is named after its content, as in ``large.onnx.3f9a1c2b.data``. So the pair is replaced
atomically, with the first file: until then the old one reads the old weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lilliput.errors import ExportError
from lilliput.files import write_atomically

_LARGEST = 2_000_000_000  # bytes of constants in one file; protobuf's limit is 2**31
_SMALL = 1024  # bytes: smaller constants stay in the graph, where runtimes read shapes


@dataclass(eq=False)
class Packed:
    """An ONNX model as bytes; ``runtimes`` are those that can execute it, the strictest first.

    Parameters
    ----------
    graph : bytes
        The file itself.
    weights : str
        The name of the second file; empty if there is none.
    folder : pathlib.Path, optional
        The folder of the second file.
    """

    runtimes: ClassVar[tuple[str, ...]] = ("onnxruntime_unoptimized", "onnxruntime", "openvino")

    graph: bytes
    weights: str = ""
    folder: Path | None = None

    @property
    def size(self) -> int:
        """The bytes of both files."""
        held = 0 if self.folder is None else (self.folder / self.weights).stat().st_size
        return len(self.graph) + held

    @property
    def names(self) -> list[str]:
        """The names of files besides the graph's own."""
        return [self.weights] if self.weights else []

    def with_outputs(self, names: Iterable[str]) -> tuple[Packed, list[str]]:
        """Return the same model with more of its tensors as outputs, and the names of all outputs."""
        import onnx

        proto = onnx.load_from_string(self.graph)
        held = [output.name for output in proto.graph.output]
        wanted = list(dict.fromkeys(name for name in names if name not in held))
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(x) for x in wanted)
        return replace(self, graph=proto.SerializeToString()), [*held, *wanted]

    def write(self, place: Path) -> None:
        """Write the file, or both, atomically, even if an older one is replaced."""
        target = Path(os.path.realpath(place))
        before = external_files(target)
        new = target.with_name(self.weights) if self.weights else None
        is_new = new is not None and not new.exists()
        try:
            if new is not None and self.folder is not None:
                os.replace(self.folder / self.weights, new)
            write_atomically(place, self.graph)
        except OSError as error:
            if new is not None and is_new:
                new.unlink(missing_ok=True)
            raise ExportError(f"{place}: it cannot be written: {error}") from error
        self.folder = None if new is None else target.parent
        for old in before:
            if old != new and old.name.startswith(f"{target.name}."):
                old.unlink(missing_ok=True)


@contextlib.contextmanager
def packing(model: Any, place: Path) -> Iterator[Packed]:
    """Yield a checked model as bytes; afterwards, remove temporary files.

    Parameters
    ----------
    model : onnx_ir.Model
        The model. Above 2 GB its constants are moved to a file.
    place : pathlib.Path
        The path to which it will be written.
    """
    sizes = (x.const_value.nbytes for x in model.graph.initializers.values() if x.const_value)
    if sum(sizes) <= _LARGEST:
        yield Packed(_serialized(model))
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{place.name[:48]}.", dir=place.parent)
    except OSError as error:
        raise ExportError(f"{place}: it cannot be written: {error}") from error
    with folder as name:
        yield _with_external_data(model, Path(name), place)


def external_files(path: Path) -> list[Path]:
    """Return the files next to an ONNX file that contain its weights; empty if it cannot be read."""
    import onnx

    if not path.is_file():
        return []
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception:  # protobuf's own errors for damaged files
        return []
    pairs = (entry for tensor in proto.graph.initializer for entry in tensor.external_data)
    names = dict.fromkeys(Path(entry.value).name for entry in pairs if entry.key == "location")
    return [path.parent / name for name in names if (path.parent / name).is_file()]


def _with_external_data(model: Any, folder: Path, place: Path) -> Packed:
    import onnx_ir

    name = f"{place.name}.{_digest(model)}.data"
    try:
        onnx_ir.external_data.unload_from_model(
            model, folder, name, size_threshold_bytes=_SMALL, max_workers=1
        )
    except OSError as error:
        raise ExportError(f"{place}: its weights cannot be written: {error}") from error
    return Packed(_serialized(model, folder), name, folder)


def _digest(model: Any) -> str:
    found = hashlib.sha256()
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            found.update(str(name).encode())
            found.update(value.const_value.tobytes())
    return found.hexdigest()[:8]


def _serialized(model: Any, folder: Path | None = None) -> bytes:
    import onnx
    import onnx_ir

    try:
        data: bytes = onnx_ir.serde.serialize_model(model).SerializeToString()
        if folder is None:
            onnx.checker.check_model(data)
        else:  # the checker looks for the second file next to the first
            (folder / "checked.onnx").write_bytes(data)
            onnx.checker.check_model(str(folder / "checked.onnx"))
    except Exception as error:  # of protobuf, the checker, or the disk
        raise ExportError(f"the graph cannot be written as ONNX: {error}") from error
    return data
