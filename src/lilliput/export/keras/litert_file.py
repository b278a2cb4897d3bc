"""export_litert: from a quantized Keras model to a checked LiteRT file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lilliput.errors import ExportError
from lilliput.export.arguments import checked_path, write_file
from lilliput.export.keras.loops import loop_layers
from lilliput.export.keras.transfer import ExportTask, write_by_tensorflow
from lilliput.export.result import ExportResult
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.simulation import Simulating


@dataclass(frozen=True)
class LiteRTSettings:
    """What was asked of a LiteRT file, as in the arguments of :func:`export_litert`."""

    io: str
    dynamic_batch: bool
    check: bool
    min_sqnr: float

    def for_float(self) -> LiteRTSettings:
        """Return the settings of the float file that the file is compared with."""
        return replace(self, io="float", check=False)


def export_litert(
    quantizer_or_model: Any,
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    io: str = "float",
    dynamic_batch: bool = True,
    check: bool = True,
    min_sqnr: float = 30.0,
    calibration: Iterable[Any] | None = None,
) -> ExportResult:
    """Write a Keras model as a LiteRT (TFLite) file that runs on integers, execute it, and compare.

    Weights are stored as int8 and activations are quantized as in the simulation, with exactly its
    scales; batch norms are folded. Masks of pruners are applied. Layers without an integer kernel in LiteRT
    stay in floating point, as simulated; the result lists them with the reasons. The model is not changed.
    Keras on JAX or torch exports in a separate process, with TensorFlow.

    Parameters
    ----------
    quantizer_or_model : Compressor or keras.Model
        A compressor after ``compress()``, or a model with or without compressors.
    path : str or path-like
        The file to write, ending in ``.tflite``.
    example_inputs : array, tuple or dict, optional
        Inputs of the model; a tuple contains several arguments. By default those of the calibration,
        or random numbers.
    io : str
        ``"float"``: the file accepts and returns float32, like the model. ``"int8"``: it accepts and
        returns the integers that it uses internally.
    dynamic_batch : bool
        Whether the file accepts batches of any size: the first axis of the inputs.
    check : bool
        Whether to execute the file and compare it with the simulation before it is written.
    min_sqnr : float
        The lowest signal-to-noise ratio in dB of the outputs, compared with the simulation on the same
        integers, at which the file is written. Quantized tensors may be off by one step of their grid.
    calibration : iterable, optional
        More inputs to compare on; by default the first batches of ``calibrate()``.

    Returns
    -------
    ExportResult
        Agreement with the simulation, the kernels of all layers, and notes.

    Raises
    ------
    ExportError
        If the model cannot be written exactly, or the executed file differs. No file is written then.

    Examples
    --------
    >>> import keras, tempfile
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
    ...     result = export_litert(model, f"{folder}/dense.tflite")
    >>> [layer.kernel for layer in result.layers]  # doctest: +SKIP
    ['FULLY_CONNECTED float32']
    """
    place = checked_path(path, ".tflite")
    if io not in ("float", "int8"):
        raise ExportError(f"io: received {io!r}, expected 'float' or 'int8'.")
    settings = LiteRTSettings(io, dynamic_batch, check, min_sqnr)
    return write_by_tensorflow(
        "litert", write_litert, quantizer_or_model, place, example_inputs, calibration, settings
    )


def write_litert(task: ExportTask) -> ExportResult:
    """Do the work of :func:`export_litert`, in a process whose Keras runs on TensorFlow."""
    from lilliput.export.keras.litert.build import build, integer_ends, name_ends, serialize
    from lilliput.export.keras.litert.check import check_file
    from lilliput.export.keras.litert.layers import list_layers
    from lilliput.export.keras.litert.marks import put_mark
    from lilliput.export.keras.litert.notes import find_notes
    from lilliput.export.keras.litert.weights import known_weights

    model, inputs = task.model, task.inputs
    settings: LiteRTSettings = task.settings
    part: Simulating = part_of("keras", "export.simulation")
    simulation = part.simulate(model, inputs)
    known = known_weights(model, simulation)  # before tracing, when variables can be read
    traced = part_of("keras", "export.trace").trace(simulation, put_mark, settings.dynamic_batch)
    data = part_of("keras", "export.convert").to_litert(traced)
    draft, found = build(data, traced.marks, simulation, known)
    names = simulation.input_names()
    layers = list_layers(draft, found)
    loops = [draft.name(x) for loop in draft.of_kind("WHILE") for x in loop.outputs]
    notes = find_notes(draft, simulation, found, layers)
    if settings.io == "int8":
        integer_ends(draft, names, simulation.names)
    name_ends(draft, names, simulation.names)
    data = serialize(draft)
    result = ExportResult(task.place, len(data), "litert", layers=layers, notes=notes)
    if settings.check:
        check_file(result, data, draft, simulation, settings.min_sqnr, task.batches)
    write_file(task.place, data)
    result.layers += loop_layers(loops, model, inputs, "WHILE float32", settings.dynamic_batch)
    return result
