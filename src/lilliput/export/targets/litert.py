"""LiteRT (TFLite) files: written from Keras models, executed by LiteRT's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lilliput.errors import StateError
from lilliput.export.targets.executed import Array, ExecutedFile, TensorInfo, list_ends
from lilliput.export.targets.target import Package, Target, Writer
from lilliput.extras import require


class LiteRTFile(ExecutedFile):
    """A LiteRT file in its interpreter."""

    casts = True

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads)
        message = "running a .tflite file needs pip install 'lilliput[litert]'"
        runtime = require("ai_edge_litert.interpreter", message)
        try:
            self.interpreter = runtime.Interpreter(str(path), num_threads=threads)
        except (ValueError, RuntimeError) as error:
            raise StateError(f"{path}: LiteRT cannot read the file ({error}).") from error
        self.runtime = f"LiteRT {version('ai-edge-litert')}"
        self.names = [x["name"] for x in self.interpreter.get_input_details()]
        self._shapes: list[tuple[int, ...]] = []

    def run(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> list[Array]:
        """Return the outputs."""
        by_name = {x["name"]: x for x in self.interpreter.get_input_details()}
        details = [by_name[name] for name in self.order(len(arrays), names)]
        if self._shapes != [x.shape for x in arrays]:
            self.check_inputs(arrays, names, any_batch=True)  # else rows of other sizes are misread
            self._shapes = []  # if it fails, the interpreter has to be resized again
            for detail, array in zip(details, arrays, strict=True):
                self.interpreter.resize_tensor_input(detail["index"], array.shape)
            self.interpreter.allocate_tensors()
            self._shapes = [x.shape for x in arrays]
        for detail, array in zip(details, arrays, strict=True):
            self.interpreter.set_tensor(detail["index"], array.astype(detail["dtype"], copy=False))
        self.interpreter.invoke()
        return [
            self.interpreter.get_tensor(x["index"]) for x in self.interpreter.get_output_details()
        ]

    def tensors(self) -> list[TensorInfo]:
        """Return the inputs and outputs."""
        inputs = self.interpreter.get_input_details()
        return list_ends(inputs, self.interpreter.get_output_details(), _describe)


def _describe(end: Mapping[str, Any]) -> tuple[str, tuple[int | None, ...], str]:
    sizes = tuple(None if size < 0 else int(size) for size in end["shape_signature"])
    return end["name"], sizes, end["dtype"].__name__


class LiteRT(Target):
    """A flatbuffer with int8 weights and activations."""

    name, title, suffix, runtime = "litert", "LiteRT", ".tflite", "litert"
    file = LiteRTFile
    writers = (
        Writer(
            "keras",
            "lilliput.export.keras.litert_file:export_litert",
            ("tensorflow", "ai_edge_litert"),
            "litert",
        ),
    )
    packages = (Package("ai-edge-litert", "executing LiteRT files", "litert", "ai_edge_litert"),)
    options = ("io", "dynamic_batch", "check", "min_sqnr")
