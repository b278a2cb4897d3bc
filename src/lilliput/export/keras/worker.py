"""The process that exports models of Keras on JAX and torch; see :mod:`transfer`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.core.pruner import Pruner
from lilliput.core.state import CompressionState
from lilliput.errors import LilliputError
from lilliput.export.arguments import OnnxSettings
from lilliput.export.guard.on_model import scales_of
from lilliput.export.keras.litert_file import LiteRTSettings, write_litert
from lilliput.export.keras.onnx_file import write_onnx
from lilliput.export.keras.transfer import ARRAYS, JOB, MODEL, REPORT, RESULT, ExportTask, unpacked
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.simulation import Array, Inputs

_WRITERS: dict[str, tuple[Any, Any]] = {
    "litert": (write_litert, LiteRTSettings),
    "onnx": (write_onnx, OnnxSettings),
}


class HeldMasks(Pruner):
    """Prune by given masks."""

    def __init__(self, model: Any, masks: dict[str, Array]) -> None:
        self.masks = masks
        super().__init__(model, [{"op_names": list(masks)}])

    def calc_mask(self, wrapper: Any, wrapper_idx: int | None = None) -> Any:
        """Return the mask of a layer."""
        return {"weight_mask": self.masks[wrapper.name]}


def main(folder: Path) -> None:
    """Do the job in a folder, and write the result there."""
    try:
        report = _work(folder)
    except LilliputError as error:
        report = {"error": type(error).__name__, "message": str(error)}
    (folder / REPORT).write_text(json.dumps(report))


def _work(folder: Path) -> dict[str, Any]:
    job, arrays = json.loads((folder / JOB).read_text()), dict(np.load(folder / ARRAYS))
    part = part_of("keras", "export.moving")
    model = part.load_model(folder / MODEL)
    if job["masks"]:
        masks = {name: arrays[f"mask {i}"] for i, name in enumerate(job["masks"])}
        HeldMasks(model, masks).compress()
    for number, found in enumerate(job["quantizers"]):
        _compress(model, found, folder / f"quantizer_{number}")
    calls: list[Inputs] = [(unpacked(x, arrays), {}) for x in job["calls"]]
    inputs, batches = calls[0], calls[1:]
    before = scales_of(model)
    write, settings = _WRITERS[job["kind"]]
    asked = settings(**job["settings"])
    result = write(ExportTask(model, folder / job["file"], inputs, batches, asked))
    changed = {k: x for k, x in scales_of(model).items() if not np.array_equal(x, before[k])}
    found = {f"scale {i}": x for i, x in enumerate(changed.values())}
    found |= {f"output {i}": x for i, x in enumerate(part.outputs_of(model, inputs))}
    np.savez(folder / RESULT, **found)
    rows = {runtime: result.compare_layers(runtime) for runtime in result.runtimes}
    return {"result": result.to_dict(), "scales": list(changed), "rows": rows}


def _compress(model: Any, found: dict[str, Any], folder: Path) -> None:
    cls: Any = import_module(found["module"])
    for name in found["name"].split("."):
        cls = getattr(cls, name)
    quantizer = cls(model, found["rules"])
    for name, value in found["options"].items():
        setattr(quantizer, name, value)
    quantizer.compress()
    quantizer.load_state(CompressionState.load(folder, "keras"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
