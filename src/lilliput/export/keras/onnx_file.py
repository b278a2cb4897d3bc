"""export_onnx for Keras: from a quantized model to a checked ONNX file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from lilliput.export.arguments import OnnxSettings, check_onnx, checked_path
from lilliput.export.guard.cpu import cpu_for
from lilliput.export.guard.on_model import kept_if_done, simulate_guarded
from lilliput.export.keras.loops import loop_layers
from lilliput.export.keras.transfer import ExportTask, write_by_tensorflow
from lilliput.export.result import ExportResult
from lilliput.extras import require
from lilliput.frameworks import part_of
from lilliput.frameworks.exporting.simulation import Simulating


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

    The same as for torch models: weights are stored as integers, activations are quantized as in the
    simulation, batch norms are folded, masks of pruners are applied. The model is not changed,
    except by ``assume_vnni``. Keras on JAX or torch exports in a separate process, with TensorFlow.

    Parameters
    ----------
    path : str or path-like
        The file to write, ending in ``.onnx``.
    target : str
        ``"onnxruntime"``, ``"openvino"``, or ``"generic"``: exactly as simulated, in the smallest
        data types.
    opset : int
        The version of ONNX's operators, 21 or later.
    min_sqnr : float
        The lowest signal-to-noise ratio in dB at which the file is written, of each quantized tensor
        and of the outputs. Each is compared with the simulation on the tensors that the runtime
        computed before it, so that roundings do not add up; end to end, the outputs may differ more, as
        stated in the result. Kernels that round unquantized activations (MatMulNBits) are compared
        without that rounding.
    calibration : iterable, optional
        More inputs to compare on, and for the guard; by default the first batches of ``calibrate()``.
    assume_vnni : bool, optional
        Whether the CPUs that will run the file accumulate 8-bit products in 32 bits (VNNI, ARM). False:
        weights are made coarser where 16-bit sums would saturate without it, which permanently changes
        the quantizer's scales. True: never. None: as on this CPU. The result states the CPUs that the
        file is for.
    quantizer_or_model, example_inputs, dynamic_batch, check
        As in :func:`lilliput.keras.export_litert`, whose result and errors it shares.
    """
    place = checked_path(path, ".onnx")
    _require_onnx()
    check_onnx(target, opset)
    cpu_for(assume_vnni, target)  # raises
    settings = OnnxSettings(target, dynamic_batch, check, min_sqnr, assume_vnni, opset)
    return write_by_tensorflow(
        "onnx", write_onnx, quantizer_or_model, place, example_inputs, calibration, settings
    )


def write_onnx(task: ExportTask) -> ExportResult:
    """Do the work of :func:`export_onnx`, in a process whose Keras runs on TensorFlow."""
    from lilliput.export.keras.onnx.convert import draft_of
    from lilliput.export.keras.onnx.rewrite import rewrite
    from lilliput.export.keras.onnx.weights import write_weights
    from lilliput.export.layers import list_layers
    from lilliput.export.onnx_file import write_draft
    from lilliput.export.passes.finish import finish

    settings: OnnxSettings = task.settings
    target = settings.target
    cpu = cpu_for(settings.assume_vnni, target)
    part: Simulating = part_of("keras", "export.simulation")
    with kept_if_done(task.model):
        simulation, guarded = simulate_guarded(part, task.model, task.inputs, task.batches, cpu)
        draft = draft_of(simulation, settings.dynamic_batch, settings.opset)
        write_weights(draft, simulation)
        rewrite(draft)
        for value, name in zip(draft.graph.inputs, simulation.input_names(), strict=True):
            value.name = name
        finish(draft, target, simulation.names)
        loops = [str(node.name) for node in draft.graph if node.op_type in ("Loop", "Scan")]
        layers = list_layers(draft.graph)
        result = ExportResult(task.place, 0, target, layers=layers, guarded=guarded, cpu=cpu)
        write_draft(draft, simulation, result, task.batches, settings.wanted_sqnr)
        is_dynamic = settings.dynamic_batch
        result.layers += loop_layers(loops, task.model, task.inputs, "Loop", is_dynamic)
        simulation.forget()
    return result


def _require_onnx() -> None:
    for name in ("onnx", "onnx_ir"):
        require(
            name, "writing ONNX files of Keras models needs pip install 'lilliput[litert,onnx]'"
        )
