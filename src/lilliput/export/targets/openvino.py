"""OpenVINO IR: an ``.xml`` file with the graph, and a ``.bin`` file with the weights next to it.

The graph goes through the ONNX passes for ``target="openvino"``; OpenVINO then saves it in its own format,
weights as i8, u8, i4 or u4. The file that is executed and compared is read back from these bytes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lilliput.errors import ExportError, StateError
from lilliput.export.packed import Packed, packing
from lilliput.export.targets.executed import Array, ExecutedFile, TensorInfo, list_ends
from lilliput.export.targets.target import Package, Target, Writer
from lilliput.extras import require
from lilliput.files import write_atomically

if TYPE_CHECKING:
    from lilliput.export.result import ExportResult
    from lilliput.frameworks.exporting.layer import Layer

RUNTIME = "openvino"
# On CPUs with AVX-512 BF16 or AMX, OpenVINO rounds float tensors to bfloat16 unless told otherwise.
_EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
_NEEDS = "OpenVINO files need pip install 'lilliput[openvino]'"
_MULTIPLY = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul", "RNNSeq"})


def export_openvino(
    quantizer_or_model: Any,
    path: str | os.PathLike[str],
    example_inputs: Any,
    *,
    dynamic_batch: bool = True,
    dynamic_shapes: Any = True,
    check: bool = True,
    min_sqnr: float = 30.0,
    calibration: Iterable[Any] | None = None,
    assume_vnni: bool | None = None,
) -> ExportResult:
    """Write a model as OpenVINO IR that runs on integers, execute it, and compare.

    As :func:`lilliput.torch.export_onnx` with ``target="openvino"``, in OpenVINO's own format: weights are
    stored as 8-bit integers, and as 4-bit integers if only the weight of a Linear is quantized.

    Parameters
    ----------
    path : str or path-like
        The file to write, ending in ``.xml``. The weights are written to a ``.bin`` file next to it.
    quantizer_or_model, example_inputs, dynamic_batch, dynamic_shapes, calibration, assume_vnni
        As in :func:`lilliput.torch.export_onnx`, whose result and errors it shares.
    check, min_sqnr
        As there. The file is executed by OpenVINO with ``INFERENCE_PRECISION_HINT="f32"``.
    """
    from lilliput.export.arguments import OnnxSettings, checked_path
    from lilliput.export.onnx_file import write_checked

    require("openvino", _NEEDS)
    place = checked_path(path, OpenVINO.suffix)
    settings = OnnxSettings(
        RUNTIME, dynamic_batch, check, min_sqnr, assume_vnni, dynamic_shapes=dynamic_shapes
    )
    return write_checked(
        quantizer_or_model, place, example_inputs, settings, calibration, packing_ir
    )


class IR(Packed):
    """A graph as the two files of OpenVINO."""

    runtimes = (RUNTIME,)

    @cached_property
    def files(self) -> tuple[bytes, bytes]:
        """The bytes of the ``.xml`` and of the ``.bin`` file."""
        openvino: Any = import_module("openvino")
        with TemporaryDirectory() as folder:
            path = Path(folder, "model.xml")
            openvino.save_model(_read_onnx(openvino.Core(), self), path, compress_to_fp16=False)
            return path.read_bytes(), path.with_suffix(".bin").read_bytes()

    @property
    def size(self) -> int:
        """The bytes of both files."""
        return sum(map(len, self.files))

    @property
    def names(self) -> list[str]:
        """Empty: the name of the second file follows from that of the first."""
        return []

    def write(self, place: Path) -> None:
        """Write both files, so that no ``.xml`` is ever next to the wrong weights."""
        graph, weights = self.files
        try:
            place.unlink(missing_ok=True)
            write_atomically(place.with_suffix(".bin"), weights)
            write_atomically(place, graph)
        except OSError as error:
            raise ExportError(f"{place}: it cannot be written: {error}") from error


@contextmanager
def packing_ir(model: Any, place: Path) -> Iterator[IR]:
    """Yield a checked ONNX model as OpenVINO's files."""
    with packing(model, place) as data:
        yield IR(data.graph, data.weights, data.folder)


def compiled(data: Packed, options: dict[str, str] | None = None) -> Any:
    """Return a file as compiled by OpenVINO for this CPU; an IR is read from its own files."""
    core: Any = import_module("openvino").Core()
    if not isinstance(data, IR):
        model = _read_onnx(core, data)
    else:
        with TemporaryDirectory() as folder:
            path = Path(folder, "model.xml")
            for place, part in zip((path, path.with_suffix(".bin")), data.files, strict=True):
                place.write_bytes(part)
            model = core.read_model(path)
    return core.compile_model(model, "CPU", _EXACT if options is None else options)


def _read_onnx(core: Any, data: Packed) -> Any:
    with TemporaryDirectory(dir=data.folder) as folder:
        model: Any = data.graph
        if data.folder is not None:  # weights are looked for next to the file
            model = Path(folder, "model.onnx")
            os.link(data.folder / data.weights, Path(folder, data.weights))
            model.write_bytes(data.graph)
        return core.read_model(model)


def fill_kernels(data: Packed, layers: list[Layer]) -> None:
    """Record for each layer the kernel that OpenVINO executes."""
    found: dict[str, tuple[str, str]] = {}
    names = sorted((layer.name for layer in layers), key=len, reverse=True)
    for op in compiled(data).get_runtime_model().get_ops():
        info = op.get_rt_info()
        kind, primitive, sources = (
            info[key].astype(str) for key in ("layerType", "primitiveType", "originalLayersNames")
        )
        for source in sources.split(",") if kind in _MULTIPLY else ():
            owner = next((x for x in names if source == x or source.startswith(f"{x}/")), None)
            if owner is not None:
                found.setdefault(owner, (kind, primitive))
    for layer in layers:
        kind, primitive = found.get(layer.name, ("", ""))
        layer.kernel = f"{kind} {primitive}".strip()
        layer.integer = primitive.endswith("_I8")
        if layer.integer:
            layer.reason = ""
        elif layer.weight_only and not layer.reason:
            layer.reason = "its integer weights are unpacked and multiplied in float"
        elif not layer.reason:
            layer.reason = "OpenVINO has no integer kernel for this combination of types"


def note_precision() -> list[str]:
    """Return a note for CPUs on which OpenVINO does not compute in float32 by default."""
    core: Any = import_module("openvino").Core()
    default = core.get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
    if default == "f32":
        return []
    return [
        f"on this CPU, OpenVINO computes float tensors in {default} by default; the file was checked in f32: "
        'core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).'
    ]


class OpenVINOFile(ExecutedFile):
    """OpenVINO IR, compiled for the CPU."""

    casts = True

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads)
        core: Any = require("openvino", _NEEDS).Core()
        try:
            self.model = core.read_model(path)
            settings = {**_EXACT, "INFERENCE_NUM_THREADS": threads}
            self.compiled = core.compile_model(self.model, "CPU", settings)
        except Exception as error:  # its exceptions have no common public base
            raise StateError(f"{path}: OpenVINO cannot read the file ({error}).") from error
        self.names = [x.any_name for x in self.compiled.inputs]
        self.runtime = f"OpenVINO {version('openvino')} in f32"

    @property
    def bytes(self) -> int:
        """The size of the graph and of its weights."""
        return sum(x.stat().st_size for x in (self.path, self.path.with_suffix(".bin")))

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs."""
        import numpy as np

        feeds = dict(zip(self.order(len(arrays), names), arrays, strict=True))
        found = self.compiled(feeds)
        return [np.array(x) for x in found.values()]

    def tensors(self) -> list[TensorInfo]:
        """Return the inputs and outputs."""
        return list_ends(self.compiled.inputs, self.compiled.outputs, _describe)

    def operations(self) -> dict[str, int]:
        """Return how often each operation occurs."""
        kinds = (x.get_type_name() for x in self.model.get_ops())
        return dict(Counter(x for x in kinds if x != "Constant").most_common())


def _describe(end: Any) -> tuple[str, tuple[int | None, ...], str]:
    sizes = tuple(x.get_length() if x.is_static else None for x in end.partial_shape)
    return end.any_name, sizes, end.element_type.to_dtype().name


class OpenVINO(Target):
    """OpenVINO's own format, executed by OpenVINO on the CPU, in float32 where not in integers."""

    name, title, suffix, runtime = "openvino", "OpenVINO", ".xml", RUNTIME
    file = OpenVINOFile
    writers = (
        Writer(
            "torch",
            "lilliput.export.targets.openvino:export_openvino",
            ("onnx", "onnx_ir", "onnxscript", "openvino"),
            "openvino",
        ),
    )
    packages = (Package("openvino", "OpenVINO files", "openvino"),)
    options = ("dynamic_batch", "dynamic_shapes", "check", "min_sqnr", "assume_vnni")
