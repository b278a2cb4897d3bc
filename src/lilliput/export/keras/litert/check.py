"""Execute a LiteRT file before it is written, and raise if it differs from the simulation."""

from __future__ import annotations

from collections.abc import Sequence

from lilliput.errors import ExportError
from lilliput.export.file_check import FileCheck
from lilliput.export.keras.litert.build import serialize
from lilliput.export.keras.litert.draft import Draft, Scales
from lilliput.export.keras.litert.layers import fill_costs
from lilliput.export.keras.litert.run import FAST, PLAIN, dequantize, quantize, run, shapes_of
from lilliput.export.result import ExportResult
from lilliput.export.steps import Integers
from lilliput.frameworks.exporting.simulation import Array, Inputs, Simulation, first_line, to_array


def check_file(
    result: ExportResult,
    data: bytes,
    draft: Draft,
    simulation: Simulation,
    min_sqnr: float,
    batches: Sequence[Inputs],
) -> None:
    """Run the file with LiteRT's own kernels and with XNNPACK, and record the outcome."""
    check = _Check(data, draft, simulation, batches)
    result._compare = check.compare_layers
    for runtime in (PLAIN, FAST):
        try:
            found = check.agreement(runtime)
            found, fault = check.step_by_step(runtime, found, min_sqnr)
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"{runtime} cannot run the file: {first_line(error)}") from error
        result.runtimes[runtime] = found
        if fault:
            raise ExportError(fault)
    fault = check.other_size(min_sqnr)
    if fault:
        raise ExportError(fault)
    feeds = check.feeds(simulation.inputs)
    rows = next(len(x) for x in feeds if x.ndim) if check.is_open else 1
    fill_costs(result.layers, draft, shapes_of(data, feeds), rows)


class _Check(FileCheck):
    """The file, the simulation, and the batches to compare them on."""

    def __init__(
        self, data: bytes, draft: Draft, simulation: Simulation, batches: Sequence[Inputs]
    ) -> None:
        graph = draft.graph
        # The same file, with all quantized activations among its outputs.
        inner = {k: x for k, x in draft.tensors.items() if x not in graph.inputs}
        tensors = {k: _integers(draft, x) for k, x in inner.items()}
        super().__init__(simulation, batches, tensors, [_step_of(draft, x) for x in graph.outputs])
        self.data = data
        self.inputs = [_integer_scales(draft, x) for x in graph.inputs]
        self.outputs = [_integer_scales(draft, x) for x in graph.outputs]
        self.is_open = any(_is_open(draft, x) for x in graph.inputs)
        self.inner = sorted(set(inner.values()) - set(graph.outputs))
        self.positions = [str(x) for x in (*graph.outputs, *self.inner)]
        self.wide = _with_outputs(data, self.inner)

    def feeds(self, inputs: Inputs) -> list[Array]:
        """Return the inputs in the form that the file accepts."""
        arrays = [to_array(x) for x in self.simulation.tensors(inputs[0])]
        pairs = zip(arrays, self.inputs, strict=True)
        return [x if scales is None else quantize(x, scales) for x, scales in pairs]

    def run(self, inputs: Inputs, runtime: str) -> list[Array]:
        """Return the outputs of the file as numbers."""
        received = run(self.data, self.feeds(inputs), runtime)
        pairs = zip(received, self.outputs, strict=True)
        return [x if scales is None else dequantize(x, scales) for x, scales in pairs]

    def inside(self, inputs: Inputs, runtime: str) -> dict[str, Array]:
        """Return the quantized activations of the file, by the numbers of their tensors."""
        return dict(zip(self.positions, run(self.wide, self.feeds(inputs), runtime), strict=True))

    def other_size(self, min_sqnr: float) -> str:
        """Return the fault for a batch of another size, if the file accepts any size."""
        if not self.is_open:
            return ""
        inputs = self.simulation.resized({})
        try:
            simulation = self.simulation.again(inputs)
        except ExportError:
            return ""  # the model itself requires its size
        try:
            _, fault = self.faults(simulation, PLAIN, min_sqnr)
        except (RuntimeError, ValueError) as error:
            fault = first_line(error)
        if not fault:
            return ""
        rows = [to_array(s.outputs[0]).shape[:1] for s in (simulation, self.simulation)]
        return (
            f"for a batch of another size (outputs {rows[0]} instead of "
            f"{rows[1]}) the file does not match the model: {fault} Pass "
            "dynamic_batch=False."
        )


def _with_outputs(data: bytes, wanted: Sequence[int]) -> bytes:
    """Return a file that also returns other tensors."""
    draft = Draft.read(data)
    draft.graph.outputs = [*draft.graph.outputs, *wanted]
    draft.model.signatureDefs = None
    return serialize(draft)


def _integer_scales(draft: Draft, index: int) -> Scales | None:
    return draft.scales(index) if draft.dtype(index) == "int8" else None


def _integers(draft: Draft, index: int) -> Integers:
    scales = draft.scales(index)
    if scales is None:
        raise ExportError(f"{draft.name(index)}: it has no scale.")
    return Integers(str(index), float(scales.scale[0]), float(scales.zero[0]))


def _step_of(draft: Draft, index: int) -> float | None:
    """Return the step of the grid of an output, or None."""
    source = index if draft.dtype(index) == "int8" else draft.source(index)
    scales = None if source is None else draft.scales(source)
    return None if scales is None else float(scales.scale[0])


def _is_open(draft: Draft, index: int) -> bool:
    signature = draft.tensor(index).shapeSignature
    return signature is not None and len(signature) > 0 and int(signature[0]) < 0
