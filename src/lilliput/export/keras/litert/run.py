"""Execute LiteRT files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lilliput.export.keras.litert.draft import Scales
from lilliput.export.keras.litert.schema import part_of_litert
from lilliput.export.run import LITERT
from lilliput.frameworks.exporting.simulation import Array
from lilliput.frameworks.logs import quiet_tensorflow

PLAIN = "litert_builtin"  # the kernels of LiteRT itself
FAST = LITERT  # the default, with XNNPACK


def interpreter_of(data: bytes, runtime: str = FAST, threads: int = 1) -> Any:
    """Return an interpreter for the bytes of a file."""
    with quiet_tensorflow():
        found = part_of_litert("interpreter", "executing")
        kinds = found.OpResolverType
        resolver = kinds.AUTO if runtime == FAST else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        return found.Interpreter(
            model_content=data, experimental_op_resolver_type=resolver, num_threads=threads
        )


def run(data: bytes, inputs: Sequence[Array], runtime: str = FAST) -> list[Array]:
    """Return the outputs of a file, in its order; integers unchanged."""
    interpreter = _invoked(data, inputs, runtime)
    return [np.array(interpreter.get_tensor(x["index"])) for x in interpreter.get_output_details()]


def shapes_of(data: bytes, inputs: Sequence[Array]) -> dict[int, tuple[int, ...]]:
    """Return the shapes of all tensors of a file in a run, by their numbers."""
    details = _invoked(data, inputs, PLAIN).get_tensor_details()
    return {int(x["index"]): tuple(int(size) for size in x["shape"]) for x in details}


def _invoked(data: bytes, inputs: Sequence[Array], runtime: str) -> Any:
    interpreter = interpreter_of(data, runtime)
    details = interpreter.get_input_details()
    for detail, array in zip(details, inputs, strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    with quiet_tensorflow():  # it logs its delegate
        interpreter.allocate_tensors()
    for detail, array in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], array.astype(detail["dtype"]))
    interpreter.invoke()
    return interpreter


def quantize(array: Array, scales: Scales) -> Array:
    """Return numbers as int8."""
    steps = np.rint(array.astype(np.float64) / scales.scale[0]) + scales.zero[0]
    return np.asarray(np.clip(steps, -128, 127), np.int8)


def dequantize(array: Array, scales: Scales) -> Array:
    """Return the numbers represented by integers."""
    shifted = array.astype(np.float32) - np.float32(scales.zero[0])
    return np.asarray(shifted * scales.scale[0])
