"""Files are written by TensorFlow: here, or in another process if Keras runs on JAX or torch.

The plain model is transferred as a ``.keras`` file, each quantizer as its class, its rules and its state,
pruners as their masks, and the inputs as arrays; the file and the result are returned.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lilliput import errors
from lilliput.errors import ExportError, LilliputError, MissingExtraError
from lilliput.export.arguments import check_options, write_file
from lilliput.export.guard.cpu import Cpu
from lilliput.export.guard.on_model import quantizers_on, sample_inputs, set_scales
from lilliput.export.result import ExportResult, Guarded
from lilliput.export.run import Agreement, sqnr
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.layer import Layer
from lilliput.frameworks.exporting.simulation import Array, Inputs, to_array

MODEL, JOB, ARRAYS, REPORT, RESULT = (
    *("model.keras", "job.json", "arrays.npz"),
    *("report.json", "result.npz"),
)
_SAME = 10.0  # dB: two backends of the same model, with different rounding
_OWN = ("op_types", "op_names")


@dataclass(frozen=True, eq=False)
class ExportTask:
    """What to write where.

    Parameters
    ----------
    place : Path
        The file to write.
    inputs : Inputs
        Arguments of the model, for tracing.
    batches : list of Inputs
        Other arguments, to compare on.
    settings : LiteRTSettings or OnnxSettings
        How to write it.
    """

    model: Any
    place: Path
    inputs: Inputs
    batches: list[Inputs]
    settings: Any


def write_by_tensorflow(
    format_: str,
    write: Callable[[ExportTask], ExportResult],
    quantizer_or_model: Any,
    place: Path,
    example_inputs: Any,
    calibration: Iterable[Any] | None,
    settings: Any,
) -> ExportResult:
    """Return what ``write(task)`` returns under TensorFlow."""
    check_options(settings.min_sqnr, calibration)
    part = part_of("keras", "export.simulation")
    model = part.model_of(quantizer_or_model)
    inputs, batches = _gather_inputs(model, example_inputs, calibration)
    task = ExportTask(model, place, inputs, batches, settings)
    is_here = part_of("keras", "export.moving").backend_name() == "tensorflow"
    result = write(task) if is_here else export_elsewhere(format_, task)

    def write_float(path: Path) -> None:
        plain, _ = part.plain_source(model, inputs[0])
        write_by_tensorflow(format_, write, plain, path, inputs[0], (), settings.for_float())

    result._source = lambda: part.plain_source(model, inputs[0])
    result._write_float = result._write_float or write_float
    return result


def _gather_inputs(
    model: Any, example_inputs: Any, calibration: Iterable[Any] | None
) -> tuple[Inputs, list[Inputs]]:
    """Return the inputs for tracing, and others to compare on."""
    part = part_of("keras", "export.simulation")
    if calibration is None:
        calibration = [tuple(args) for args, _ in sample_inputs(model)]
    seen = [part.as_inputs(x) for x in calibration]
    if example_inputs is not None:
        return part.as_inputs(example_inputs), seen
    return (seen[0], seen[1:]) if seen else (part.examples_for(model), [])


def export_elsewhere(kind: str, task: ExportTask) -> ExportResult:
    """Export a model in a process with TensorFlow; ``kind`` is 'litert' or 'onnx'."""
    model, place, inputs = task.model, task.place, task.inputs
    if find_spec("tensorflow") is None:
        raise MissingExtraError(part_of("keras", "export.trace").NEEDS_TENSORFLOW)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        part = part_of("keras", "export.moving")
        part.save_model(model, folder / MODEL)
        job: dict[str, Any] = {"kind": kind, "settings": asdict(task.settings)}
        job |= {"file": f"model{place.suffix}", "quantizers": _save_quantizers(model, folder)}
        arrays = part.masks_of(model)
        job["masks"] = list(arrays)
        arrays = {f"mask {i}": x for i, x in enumerate(arrays.values())}
        job["calls"] = [_packed(call_, arrays) for call_ in (inputs, *task.batches)]
        np.savez(folder / ARRAYS, **arrays)
        (folder / JOB).write_text(json.dumps(job))
        report = _run(folder)
        received = dict(np.load(folder / RESULT))
        _compare(model, inputs, received)
        _take_scales(model, report, received)
        if report["result"]["beside"]:
            raise ExportError(
                f"{place}: above 2 GB, models of Keras on {_backend()} cannot be exported; "
                "run with KERAS_BACKEND=tensorflow."
            )
        data = (folder / str(job["file"])).read_bytes()
    write_file(place, data)
    return _result(place, report)


def _backend() -> str:
    return str(part_of("keras", "export.moving").backend_name())


def _save_quantizers(model: Any, folder: Path) -> list[dict[str, Any]]:
    found = []
    for number, quantizer in enumerate(quantizers_on(model)):
        cls = type(quantizer)
        if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
            raise ExportError(
                f"exporting needs TensorFlow, and {cls.__name__} cannot be moved there from Keras on "
                f"{_backend()}: its class is not in an importable module. Move it to one, or run with "
                "KERAS_BACKEND=tensorflow."
            )
        quantizer.state().save(folder / f"quantizer_{number}")
        found.append(
            {
                "module": cls.__module__,
                "name": cls.__qualname__,
                "rules": [_rule(wrapper) for wrapper in quantizer.get_modules_wrapper()],
                "options": _options(quantizer),
            }
        )
    return found


def _rule(wrapper: Any) -> dict[str, Any]:
    settings = {key: value for key, value in wrapper.config.items() if key not in _OWN}
    return {**settings, "op_names": [wrapper.name]}


def _options(quantizer: Any) -> dict[str, Any]:
    """Return the plain attributes of a quantizer: the arguments of its constructor."""
    found = {}
    for name, value in vars(quantizer).items():
        if not name.startswith("_") and isinstance(value, (bool, int, float, str, type(None))):
            found[name] = value
    return {key: value for key, value in found.items() if key not in ("config_list", "is_wrapped")}


def _packed(inputs: Inputs, arrays: dict[str, Array]) -> Any:
    """Return arguments as plain data, with names instead of arrays."""

    def pack(x: Any) -> Any:
        if isinstance(x, Mapping):
            return {"dict": {str(key): pack(value) for key, value in x.items()}}
        if isinstance(x, (list, tuple)):
            return {type(x).__name__ if type(x) is tuple else "list": [pack(y) for y in x]}
        name = f"input {len(arrays)}"
        arrays[name] = np.asarray(to_array(x))
        return name

    return pack(inputs[0])


def unpacked(packed: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the arguments given to :func:`_packed`."""
    if isinstance(packed, str):
        return arrays[packed]
    ((kind, content),) = packed.items()
    if kind == "dict":
        return {key: unpacked(value, arrays) for key, value in content.items()}
    items = [unpacked(value, arrays) for value in content]
    return tuple(items) if kind == "tuple" else items


def _run(folder: Path) -> dict[str, Any]:
    """Run the other process, and return its report, or raise its error."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-m", "lilliput.export.keras.worker", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not (folder / REPORT).exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ExportError(
            f"the process that exports with TensorFlow ended with code {done.returncode}: "
            f"{lines[-1][:300] if lines else ''}"
        )
    report: dict[str, Any] = json.loads((folder / REPORT).read_text())
    if "error" in report:
        cls = getattr(errors, report["error"], ExportError)
        is_ours = isinstance(cls, type) and issubclass(cls, LilliputError)
        raise (cls if is_ours else ExportError)(report["message"])
    return report


def _compare(model: Any, inputs: Inputs, received: Mapping[str, Array]) -> None:
    """Raise if the model computes different outputs on TensorFlow."""
    outputs = part_of("keras", "export.moving").outputs_of(model, inputs)
    for number, output in enumerate(outputs):
        found = sqnr(output, received[f"output {number}"])
        if not found >= _SAME:
            raise ExportError(
                f"{type(model).__name__} computes different outputs on TensorFlow than on {_backend()}: "
                f"output {number} is {found:.1f} dB apart. Does it use functions of one backend, or weights "
                "that are not saved in its file?"
            )


def _take_scales(model: Any, report: Mapping[str, Any], received: Mapping[str, Array]) -> None:
    """Apply the scales that a guard has changed."""
    names = [tuple(x) for x in report["scales"]]
    set_scales(model, {(x[0], x[1]): received[f"scale {i}"] for i, x in enumerate(names)})


def _result(place: Path, report: Mapping[str, Any]) -> ExportResult:
    found = report["result"]
    runtimes = {
        name: Agreement(**{**x, "sqnr": math.inf if x["sqnr"] is None else x["sqnr"]})
        for name, x in found["runtimes"].items()
    }
    result = ExportResult(place, found["bytes"], found["target"], runtimes)
    result.layers = [Layer(**x) for x in found["layers"]]
    result.notes = list(found["notes"])
    result.guarded = [Guarded(**x) for x in found["guarded"]]
    result.cpu = None if found["cpu"] is None else Cpu(**found["cpu"])
    result._compare = lambda runtime: list(report["rows"].get(runtime, ()))
    return result
