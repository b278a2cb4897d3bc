"""export_onnx for Keras: from a quantized model to a checked ONNX file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lilliput.errors import ExportError
from lilliput.export.arguments import check_options, checked_path
from lilliput.export.guard.cpu import cpu_for
from lilliput.export.keras.elsewhere import write_by_tensorflow
from lilliput.export.keras.guard import guard_model, kept_if_done, may_saturate
from lilliput.export.keras.loops import loop_layers
from lilliput.export.keras.simulation import input_names, model_of, simulate
from lilliput.export.packed import packing
from lilliput.export.places import Inputs
from lilliput.export.result import ExportResult
from lilliput.extras import require

_OPSETS = range(21, 24)


def export_onnx(
    quantizer_or_model: Any,
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    target: str = "onnxruntime",
    *,
    dynamic_batch: bool = True,
    opset: int = 21,
    check: bool = True,
    min_sqnr: float = 30.0,
    calibration: Iterable[Any] | None = None,
    assume_vnni: bool | None = None,
) -> ExportResult:
    """Write a Keras model as an ONNX file that runs on integers, execute it, and compare.

    The same as for torch models: weights are stored as integers, activations are quantized where the
    simulation does so, batch norms are folded, masks of pruners are applied. The model is not changed,
    except as ``assume_vnni`` says. Keras on JAX or torch exports in a process of its own, with TensorFlow.

    Parameters
    ----------
    quantizer_or_model : Compressor or keras.Model
        A compressor after ``compress()``, or a model with or without compressors on it.
    path : str or path-like
        The file to write, ending in ``.onnx``.
    example_inputs : array, tuple or dict, optional
        What the model is called with; a tuple holds several arguments. By default what calibration saw,
        or random numbers.
    target : str
        ``"onnxruntime"``, ``"openvino"``, or ``"generic"``: exactly as simulated, in the smallest
        data types.
    dynamic_batch : bool
        Whether the file takes batches of any size: the first axis of the inputs.
    opset : int
        The version of ONNX's operators, 21 or later.
    check : bool
        Whether to execute the file and compare it with the simulation before it is written.
    min_sqnr : float
        The lowest signal to noise ratio in dB at which the file is written, of each quantized tensor and
        of the outputs. Each is compared with the simulation given what the runtime computed before it, so
        that roundings do not add up; from end to end the outputs may be further off, as the result says.
        Kernels that round activations which nothing quantizes (MatMulNBits) are judged without that.
    calibration : iterable, optional
        More inputs to compare on, and for the guard; by default the first batches of ``calibrate()``.
    assume_vnni : bool, optional
        Whether the CPUs that will run the file have VNNI (or are ARM). False: weights are made coarser
        where 16-bit sums would saturate without it, which changes the scales of the quantizer for good.
        True: never. None: as this CPU is. The result says which CPUs the file is for.

    Returns
    -------
    ExportResult
        Agreement with the simulation, the kernels of all layers, and notes.

    Raises
    ------
    ExportError
        If the model cannot be written exactly, or the executed file differs. No file is left then.
    """
    place = checked_path(path, ".onnx")
    check_options(min_sqnr, calibration)
    if opset not in _OPSETS:
        raise ExportError(f"opset: received {opset!r}, expected {_OPSETS[0]} to {_OPSETS[-1]}.")
    _require_onnx()
    from lilliput.export.passes.fit import check_target

    check_target(target)
    model = model_of(quantizer_or_model)
    settings: dict[str, Any] = {"target": target, "dynamic_batch": dynamic_batch, "opset": opset}
    settings |= {"check": check, "min_sqnr": min_sqnr, "assume_vnni": assume_vnni}
    cpu_for(assume_vnni, target)  # raises
    return write_by_tensorflow(
        "onnx", write_onnx, model, place, example_inputs, calibration, settings
    )


def write_onnx(
    model: Any,
    place: Path,
    inputs: Inputs,
    batches: list[Inputs],
    *,
    target: str,
    dynamic_batch: bool,
    opset: int,
    check: bool,
    min_sqnr: float,
    assume_vnni: bool | None,
) -> ExportResult:
    """Do the work of :func:`export_onnx`, in a process whose Keras runs on TensorFlow."""
    from lilliput.export.check import check_file
    from lilliput.export.keras.onnx.convert import draft_of
    from lilliput.export.keras.onnx.rewrite import rewrite
    from lilliput.export.keras.onnx.weights import write_weights
    from lilliput.export.layers import list_layers
    from lilliput.export.passes.finish import finish, write_float
    from lilliput.export.passes.fit import find_notes

    cpu = cpu_for(assume_vnni, target)
    with kept_if_done(model):
        guarded = guard_model(model, [inputs, *batches], not cpu.has_vnni) if cpu else []
        simulation = simulate(model, inputs)
        draft = draft_of(simulation, dynamic_batch, opset)
        write_weights(draft, simulation)
        rewrite(draft)
        for value, name in zip(draft.graph.inputs, input_names(simulation), strict=True):
            value.name = name
        finish(draft, target, simulation.names)
        layers = list_layers(draft.graph)
        loops = [str(node.name) for node in draft.graph if node.op_type in ("Loop", "Scan")]
        notes = [*draft.notes, *find_notes(layers, draft, target)]
        result = ExportResult(place, 0, target, layers=layers, notes=notes)
        result.guarded, result.cpu = guarded, cpu if may_saturate(model) else None
        result._write_float = partial(write_float, draft.traced, target, simulation.names)
        with packing(draft.model, place) as data:
            result.bytes, result.beside = data.size, data.names
            if check:
                check_file(result, data, draft, simulation, min_sqnr, batches)
            data.write(place)
        result.layers += loop_layers(loops, model, inputs, "Loop", dynamic_batch)
    return result


def _require_onnx() -> None:
    for name in ("onnx", "onnx_ir"):
        require(
            name, "writing ONNX files of Keras models needs pip install 'lilliput[litert,onnx]'"
        )
