"""export_onnx: from a quantized model to a checked ONNX file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.export.arguments import OnnxSettings, check_onnx, check_options, checked_path
from lilliput.export.guard.cpu import cpu_for
from lilliput.export.guard.on_model import (
    kept_if_done,
    may_saturate,
    sample_inputs,
    simulate_guarded,
)
from lilliput.export.packed import Packed, packing
from lilliput.export.passes.finish import finish, write_float
from lilliput.export.result import ExportResult
from lilliput.export.sizes.axes import choose_axes
from lilliput.export.sizes.opening import Opening, size_texts, untried, write_open
from lilliput.extras import require
from lilliput.frameworks import part_for, part_of
from lilliput.frameworks.exporting.simulation import Inputs, Simulating, Simulation

if TYPE_CHECKING:
    from lilliput.export.passes.graph import Draft

Pack = Callable[[Any, Path], AbstractContextManager[Packed]]
_NO_CACHE = "exported with config.use_cache = False: the file computes all tokens in each call."


def export_onnx(
    quantizer_or_model: Any,
    path: str | os.PathLike[str],
    example_inputs: Any,
    target: str = "onnxruntime",
    *,
    dynamic_batch: bool = True,
    dynamic_shapes: Any = True,
    opset: int = 21,
    check: bool = True,
    min_sqnr: float = 30.0,
    calibration: Iterable[Any] | None = None,
    assume_vnni: bool | None = None,
) -> ExportResult:
    """Write a model as an ONNX file that runs on integers, execute it, and compare.

    Weights are stored as integers, activations are quantized as in the simulation, batch
    norms are folded. Masks of pruners are applied. The model is not changed, except
    by ``assume_vnni``.

    Parameters
    ----------
    quantizer_or_model : Compressor or torch.nn.Module
        A compressor after ``compress()``, or a model with or without compressors.
    path : str or path-like
        The file to write, ending in ``.onnx``. Above 2 GB, weights are written to a second file next to
        it, whose name starts with that of the first and ends in ``.data``.
    example_inputs : tensor, tuple or dict
        Inputs of the model.
    target : str
        ``"onnxruntime"``, ``"openvino"``, or ``"generic"``: exactly as simulated, in the smallest
        data types.
    dynamic_batch : bool
        Whether the file accepts batches of any size: the first axis of the inputs.
    dynamic_shapes : bool, dict or tuple
        Which other sizes are dynamic. True: all for which the model itself accepts other values, such
        as the length of a text or the height and width of images; the result lists them. False: none.
        Or the axes of each input as in ``torch.export``, by name or in order, including the batch:
        ``{"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}}``;
        an axis has a name, a ``torch.export.Dim``, or None for a fixed size.
    opset : int
        The version of ONNX's operators, 21 or later.
    check : bool
        Whether to execute the file and compare it with the simulation before it is written.
    min_sqnr : float
        The lowest signal-to-noise ratio in dB at which the file is written, of each quantized tensor
        and of each output, in every runtime: compared with the simulation on the tensors that the
        runtime computed before it, so that the file is judged and not the accumulation of roundings.
        End to end, the outputs may differ more, as stated in the result. Kernels that round unquantized
        activations (MatMulNBits, integer LSTMs) are compared without that rounding.
    calibration : iterable, optional
        More inputs to compare on, and for the guard; by default the first batches of ``calibrate()``, on
        which the file is executed with optimizations only.
    assume_vnni : bool, optional
        Whether the CPUs that will run the file have VNNI (or are ARM). False: weights are made coarser
        where 16-bit sums would saturate without it, which permanently changes the scales of the quantizer.
        True: never. None: as on this CPU. The result states the CPUs that the file is for.

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
    >>> import tempfile, torch
    >>> model = torch.nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = export_onnx(model, f"{folder}/linear.onnx", torch.randn(3, 4))
    >>> [layer.op for layer in result.layers]
    ['Gemm']
    """
    _require_onnx()
    check_onnx(target, opset)
    settings = OnnxSettings(
        target, dynamic_batch, check, min_sqnr, assume_vnni, opset, dynamic_shapes
    )
    place = checked_path(path, ".onnx")
    return write_checked(quantizer_or_model, place, example_inputs, settings, calibration)


def write_checked(
    quantizer_or_model: Any,
    place: Path,
    example_inputs: Any,
    settings: OnnxSettings,
    calibration: Iterable[Any] | None,
    pack: Pack = packing,
) -> ExportResult:
    """Do the work of :func:`export_onnx`; ``pack`` converts the graph to the bytes of the file."""
    _require_onnx()
    from lilliput.export.layers import example_sizes, list_layers
    from lilliput.export.rounding import keep_precise

    check_options(settings.min_sqnr, calibration)
    target = settings.target
    part: Simulating = part_of("torch", "export.simulation")
    model, inputs = part.model_of(quantizer_or_model), part.as_inputs(example_inputs)
    cpu = cpu_for(settings.assume_vnni, target)
    if calibration is None:
        batches = sample_inputs(model)
    else:
        batches = [part.like_example(batch, inputs) for batch in calibration]
    with kept_if_done(model):
        simulation, guarded = simulate_guarded(part, model, inputs, batches, cpu)

        def write(opening: Opening) -> ExportResult:
            draft = build(replace(simulation, axes=opening.axes), target, settings.opset)
            if settings.check:
                keep_precise(draft, simulation, batches, settings.min_sqnr)
            shapes = {str(x.name): () for x in draft.graph.inputs}
            shapes = {k: tuple(x.shape) for k, x in simulation.by_name([*shapes]).items()}
            layers = list_layers(draft.graph, example_sizes(draft.graph, shapes))
            result = ExportResult(place, 0, target, layers=layers, guarded=guarded, cpu=cpu)
            result.notes += [_NO_CACHE] if _keeps_states(model) else []
            result.notes += [] if settings.check else untried(draft.sizes)
            result._source = lambda: part.plain_source(model, example_inputs)
            is_asked, wanted = calibration is not None, settings.wanted_sqnr
            write_draft(draft, simulation, result, batches, wanted, is_asked, pack)
            is_given = settings.dynamic_shapes is not True
            result.sizes = size_texts(simulation, draft, opening, is_given)
            return result

        try:
            axes = choose_axes(simulation, settings.dynamic_batch, settings.dynamic_shapes)
            return write_open(axes, write)
        finally:
            simulation.forget()


def write_draft(
    draft: Draft,
    simulation: Simulation,
    result: ExportResult,
    batches: Sequence[Inputs],
    min_sqnr: float | None,
    is_asked: bool = False,
    pack: Pack = packing,
) -> None:
    """Write a finished graph as the file of a result; with ``min_sqnr`` None, without executing it."""
    from lilliput.export.check import check_file
    from lilliput.export.passes.fit import find_notes

    found = find_notes(result.layers, draft, result.target)
    result.notes = [*draft.notes, *found, *result.notes]
    result.cpu = result.cpu if may_saturate(simulation.model) else None
    result._write_float = partial(
        write_float, draft.traced, result.target, simulation.names, pack=pack
    )
    with pack(draft.model, result.path) as data:
        result.bytes, result.beside = data.size, data.names
        if min_sqnr is not None:
            at_sizes = replace(simulation, axes=draft.sizes.axes if draft.sizes else ())
            check_file(result, data, draft, at_sizes, min_sqnr, batches, is_asked)
        data.write(result.path)


def _keeps_states(model: Any) -> bool:
    """Whether this is a Hugging Face model that caches keys and values between tokens."""
    can_generate = getattr(model, "can_generate", None)
    uses_cache = getattr(getattr(model, "config", None), "use_cache", False) is True
    return uses_cache and callable(can_generate) and bool(can_generate())


def build(simulation: Simulation, target: str, opset: int) -> Draft:
    """Return the model as an ONNX graph with integers; the axes of the simulation are dynamic."""
    from lilliput.export.passes.graph import Draft, keep_scopes, rename_sizes

    trace = part_for(simulation.model, "export.trace").trace
    model, sizes, names = trace(simulation, opset, prepare=keep_scopes)
    rename_sizes(model.graph, names)
    draft = Draft(model, simulation.placements, sizes=sizes)
    return finish(draft, target, simulation.names)


def _require_onnx() -> None:
    for name in ("onnx", "onnx_ir", "onnxscript"):
        require(name, "writing ONNX needs pip install 'lilliput[onnx]'")
