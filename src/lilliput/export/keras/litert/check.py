"""Execute a LiteRT file before it is written, and refuse it where it differs from the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lilliput.errors import ExportError, StageError
from lilliput.export.keras.litert.build import serialize
from lilliput.export.keras.litert.draft import Draft, Scales
from lilliput.export.keras.litert.layers import fill_costs
from lilliput.export.keras.litert.run import FAST, PLAIN, dequantize, quantize, run, shapes_of
from lilliput.export.places import Array, Inputs, Simulation, first_line, to_array
from lilliput.export.result import ExportResult
from lilliput.export.run import Agreement, compare, sqnr
from lilliput.export.steps import ONE_STEP, Integers, Step, compare_steps


def check_file(
    result: ExportResult,
    data: bytes,
    draft: Draft,
    simulation: Simulation,
    min_sqnr: float,
    batches: Sequence[Inputs],
) -> None:
    """Run the file with LiteRT's own kernels and with XNNPACK, and enter what was found."""
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


class _Check:
    """The file, the simulation, and the batches to compare them on."""

    def __init__(
        self, data: bytes, draft: Draft, simulation: Simulation, batches: Sequence[Inputs]
    ) -> None:
        self.data, self.simulation = data, simulation
        self.names = simulation.names
        graph = draft.graph
        self.inputs = [_integer_scales(draft, x) for x in graph.inputs]
        self.outputs = [_integer_scales(draft, x) for x in graph.outputs]
        self.steps = [_step_of(draft, x) for x in graph.outputs]
        self.is_open = any(_is_open(draft, x) for x in graph.inputs)
        # The same file, with all quantized activations among its outputs.
        inner = {k: x for k, x in draft.tensors.items() if x not in graph.inputs}
        self.inner = sorted(set(inner.values()) - set(graph.outputs))
        self.tensors = {k: _integers(draft, x) for k, x in inner.items()}
        self.positions = [str(x) for x in (*graph.outputs, *self.inner)]
        self.wide = _with_outputs(data, self.inner)
        self.batches = [simulation.inputs, *batches]
        self.expected = [[to_array(x) for x in simulation.outputs]]
        self.expected += [[to_array(x) for x in simulation.again(b).outputs] for b in batches]
        if len(graph.outputs) != len(self.expected[0]):
            raise ExportError(
                f"the file has {len(graph.outputs)} outputs, the model {len(self.expected[0])}; "
                "return tensors that depend on the inputs."
            )

    def feeds(self, inputs: Inputs) -> list[Array]:
        """Return inputs as the file takes them."""
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

    def agreement(self, runtime: str) -> Agreement:
        """Return how close a runtime is on all batches together."""
        received = [self.run(inputs, runtime) for inputs in self.batches]
        count = len(self.batches)
        flat = [[x for batch in batches for x in batch] for batches in (self.expected, received)]
        return compare(self.names * count, flat[0], flat[1], self.steps * count)

    def step_by_step(
        self, runtime: str, found: Agreement, min_sqnr: float
    ) -> tuple[Agreement, str]:
        """Compare every quantized tensor on its own; return the worst, and what is wrong with it."""
        steps, fault = self._faults(self.simulation, runtime, min_sqnr)
        worst = max(steps, key=lambda step: step.lsb, default=None)
        if worst is not None:
            found = replace(found, local_lsb=worst.lsb, local_layer=worst.layer)
        return found, fault

    def _faults(
        self, simulation: Simulation, runtime: str, min_sqnr: float
    ) -> tuple[list[Step], str]:
        values = self.inside(simulation.inputs, runtime)
        steps, outputs = compare_steps(simulation, self.tensors, values)
        for step in steps:
            if step.lsb > ONE_STEP:
                return steps, _explain(step, runtime)
        last = compare(self.names, outputs, self.run(simulation.inputs, runtime), self.steps)
        if not last.sqnr >= min_sqnr and not (last.lsb is not None and last.lsb <= ONE_STEP):
            return steps, _far(last, runtime, min_sqnr)
        return steps, ""

    def other_size(self, min_sqnr: float) -> str:
        """Return what is wrong with a batch of another size, where the file takes any."""
        if not self.is_open:
            return ""
        inputs = self.simulation.resized({})
        try:
            simulation = self.simulation.again(inputs)
        except ExportError:
            return ""  # the model itself insists on its size
        try:
            _, fault = self._faults(simulation, PLAIN, min_sqnr)
        except (RuntimeError, ValueError) as error:
            fault = first_line(error)
        if not fault:
            return ""
        rows = [to_array(s.outputs[0]).shape[:1] for s in (simulation, self.simulation)]
        return (
            f"for a batch of another size (outputs {rows[0]} in place of {rows[1]}) the file does not do "
            f"what the model does: {fault} Pass dynamic_batch=False."
        )

    def compare_layers(self, runtime: str) -> list[dict[str, Any]]:
        """Return how close each quantized activation is, in order of execution."""
        again = self.simulation.again(self.simulation.inputs, keep=True)
        pairs = zip(again.outputs, self.expected[0], strict=True)
        if not all(np.array_equal(to_array(x), y) for x, y in pairs):
            raise StageError("the model has changed since it was exported; export it again.")
        found = self.inside(self.simulation.inputs, runtime)
        places = {place.key: place for place in again.places}
        rows = []
        for (number, position, call), held in self.tensors.items():
            place = self.simulation.places[number]
            results = places[place.key].results
            if call < len(results):
                expected = to_array(results[call][position])
                received = held.reals(found).reshape(expected.shape)
                worst = compare([held.name], [expected], [received], [held.step(found)])
                rows.append(
                    {
                        "layer": place.wrapper.name,
                        "tensor": place.quant_type.value,
                        "call": call,
                        "sqnr": sqnr(expected, received),
                        "max_error": worst.max_error,
                        "lsb": worst.lsb,
                    }
                )
        return rows


def _with_outputs(data: bytes, wanted: Sequence[int]) -> bytes:
    """Return a file that returns more of its tensors."""
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
    """Return the step of the grid that an output lies on, None if it lies on none."""
    source = index if draft.dtype(index) == "int8" else draft.source(index)
    scales = None if source is None else draft.scales(source)
    return None if scales is None else float(scales.scale[0])


def _is_open(draft: Draft, index: int) -> bool:
    signature = draft.tensor(index).shapeSignature
    return signature is not None and len(signature) > 0 and int(signature[0]) < 0


def _explain(step: Step, runtime: str) -> str:
    return (
        f"the {step.tensor} of layer {step.layer!r} as executed by {runtime} is {step.lsb:g} steps of its "
        f"grid from the simulation ({step.sqnr:.1f} dB), given the same inputs."
    )


def _far(found: Agreement, runtime: str, min_sqnr: float) -> str:
    return (
        f"output {found.output!r} as executed by {runtime} is {found.sqnr:.1f} dB from the simulation "
        f"(largest difference {found.max_error:.3g}), expected {min_sqnr:g} dB or more."
    )
