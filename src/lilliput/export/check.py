"""Execute a file before it is written, and refuse it where it differs from the simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.errors import ExportError, StageError
from lilliput.export.cpu import cpu_has_wide_dot
from lilliput.export.graph import Draft, array_of, layers_of, producer
from lilliput.export.kernels import read_kernels
from lilliput.export.layer import Layer, count_macs
from lilliput.export.packed import Packed
from lilliput.export.places import Inputs, Simulation, first_line, to_array
from lilliput.export.propagate import MOVERS
from lilliput.export.result import ExportResult
from lilliput.export.run import (
    ACCURACY,
    EXACT,
    FAST,
    OPENVINO,
    PLAIN,
    Agreement,
    Feeds,
    compare,
    has_openvino,
    require_onnxruntime,
    run,
    sqnr,
)
from lilliput.export.steps import ONE_STEP, Step, aligned
from lilliput.export.stepwise import Stepwise

# Runtimes whose agreement decides, besides the one without optimizations.
_DECISIVE = {"onnxruntime": FAST, "openvino": OPENVINO, "generic": PLAIN}


def check_file(
    result: ExportResult,
    data: Packed,
    draft: Draft,
    simulation: Simulation,
    min_sqnr: float,
    calibration: Iterable[Inputs],
) -> None:
    """Run the file in every runtime at hand, and enter what was found into the result."""
    require_onnxruntime()
    check = _Check(data, draft, simulation, calibration)
    result._compare = check.compare_layers
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder, "optimized.onnx")
        for runtime in [PLAIN, FAST, *([OPENVINO] if has_openvino() else [])]:
            is_decisive = runtime in (PLAIN, _DECISIVE[result.target])
            if runtime == FAST and _saturates_only_here(result):
                is_decisive = False
            try:
                found = check.agreement(runtime, str(optimized) if runtime == FAST else "")
            except Exception as error:
                text = f"{runtime} cannot run the file: {type(error).__name__}: {first_line(error)}"
                if is_decisive and result.target != "generic":
                    raise ExportError(text) from error
                result.notes.append(text)
                continue
            if runtime != OPENVINO:
                found, fault = check.step_by_step(runtime, found, min_sqnr)
            else:
                fault = "" if found.sqnr >= min_sqnr else _far(found, runtime, min_sqnr)
            result.runtimes[runtime] = found
            has_packed = any(x.weight_only and x.op == "MatMul" for x in result.layers)
            if fault and runtime == FAST and has_packed and check.is_exact_in_float(min_sqnr):
                fault, is_decisive = f"{fault} {_ROUNDED}", False
            if fault and is_decisive:
                raise ExportError(fault)
            result.notes += [fault] if fault else []
        if result.target == "openvino" and not has_openvino():
            result.notes.append(
                "OpenVINO is not installed: executed by ONNX Runtime only, and the kernels are its own."
            )
        if optimized.exists():
            read_kernels(optimized, result.layers, draft.graph)
    if check.refused:
        result.notes.append(
            f"the model itself refuses batches of {', '.join(check.refused)} rows (it was traced for "
            f"{draft.sizes}): give the file only sizes that the model takes."
        )
    if PLAIN in result.runtimes:
        check.fill_costs(result.layers, draft)


def _saturates_only_here(result: ExportResult) -> bool:
    """Whether the file is for CPUs with VNNI, and layers may saturate on this one, which has none."""
    is_for_others = result.cpu is not None and result.cpu.has_vnni and not cpu_has_wide_dot()
    return is_for_others and any(not row.is_changed for row in result.guarded)


_LARGEST = 2**28  # bytes of inputs to try a batch size with
_ROUNDED = (
    "It is its MatMulNBits kernel that rounds activations to 8 bits, which nothing simulates; with float "
    f"activations (session option {ACCURACY}=1) the file is right."
)
_FIXED = "Pass dynamic_batch=False for a file that takes the example's batch size only."


class _Check:
    """The file, the simulation, and the batches to compare them on."""

    def __init__(
        self, data: Packed, draft: Draft, simulation: Simulation, calibration: Iterable[Inputs]
    ) -> None:
        self.data, self.simulation, self.draft = data, simulation, draft
        shapes = [value.shape for value in draft.graph.inputs if value.shape is not None]
        self.is_open = any(len(x) and not isinstance(x[0], int) for x in shapes)
        self.inputs = [str(value.name) for value in draft.graph.inputs]
        self.outputs = [str(value.name) for value in draft.graph.outputs]
        self.steps = [_step(value) for value in draft.graph.outputs]
        self.tensors = {key: (str(v.name), _step(v)) for key, v in draft.tensors.items()}
        self.refused: list[str] = []  # batch sizes that the model does not take
        self.received: dict[str, Any] = {}  # by runtime: the outputs of the first batch
        self.batches = [self.feeds(simulation.inputs)]
        self.stepwise = Stepwise(data, draft, simulation, self.batches[0])
        self.expected = [[to_array(x) for x in simulation.outputs]]
        if len(self.outputs) != len(self.expected[0]):
            raise ExportError(
                f"the file has {len(self.outputs)} outputs, the model {len(self.expected[0])}; "
                "return tensors that depend on the inputs."
            )
        for inputs in calibration:
            self.batches.append(self.feeds(inputs))
            self.expected.append([to_array(x) for x in simulation.again(inputs).outputs])

    def feeds(self, inputs: Inputs) -> Feeds:
        """Return inputs by the names they have in the file."""
        if not inputs[0] and set(self.inputs) <= inputs[1].keys():
            return {name: to_array(inputs[1][name]) for name in self.inputs}
        tensors = self.simulation.tensors(inputs)
        if len(tensors) != len(self.inputs):
            raise ExportError(
                f"the file has inputs {self.inputs}, but the model is called with {len(tensors)} tensors."
            )
        return {name: to_array(x) for name, x in zip(self.inputs, tensors, strict=True)}

    def agreement(self, runtime: str, optimized: str = "") -> Agreement:
        """Return how close a runtime is on all batches together."""
        received = run(runtime, self.data, self.batches, optimized)
        self.received[runtime] = received[0]
        names, steps, expected, outputs = [], [], [], []
        for wanted, got in zip(self.expected, received, strict=True):
            names += self.outputs
            steps += self.steps
            expected += wanted
            outputs += got
        return compare(names, expected, outputs, steps)

    def compare_layers(self, runtime: str = FAST) -> list[dict[str, Any]]:
        """Return how close each quantized activation is, in order of execution."""
        again = self.simulation.again(self.simulation.inputs, keep=True)
        if not all(
            np.array_equal(to_array(x), y)
            for x, y in zip(again.outputs, self.expected[0], strict=False)
        ):
            raise StageError("the model has changed since it was exported; export it again.")
        found = self._inside(runtime, [name for name, _ in self.tensors.values()])
        places = {place.key: place for place in again.places}
        rows = []
        for (number, position, call), (name, step) in self.tensors.items():
            place = self.simulation.places[number]
            results = places[place.key].results
            if call < len(results):
                expected = to_array(results[call][position])
                received = aligned(found[name], expected)
                worst = compare([name], [expected], [received], [step])
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

    def _inside(self, runtime: str, names: Iterable[str]) -> Feeds:
        """Return tensors inside the graph, and its outputs, on the example inputs."""
        data, held = self.data.with_outputs(names)
        (values,) = run(runtime, data, self.batches[:1])
        return dict(zip(held, values, strict=True))

    def fill_costs(self, layers: list[Layer], draft: Draft) -> None:
        """Count multiplications where the trace does not know the shapes."""
        unknown = {layer.name: layer for layer in layers if layer.macs is None}
        nodes = [node for node in layers_of(draft.graph) if node.name in unknown]
        operands = {node.name: [*node.inputs[:2], node.outputs[0]] for node in nodes}
        computed = [x for values in operands.values() for x in values if not _is_given(x)]
        if not computed:
            return
        found = self._inside(PLAIN, [str(value.name) for value in computed if value is not None])
        batch = next(iter(self.batches[0].values())).shape[:1]
        is_open = any(not isinstance(d, int) for x in draft.graph.inputs for d in x.shape or ())
        for node in nodes:
            values = operands[node.name]
            shapes = [found[x.name].shape for x in values if x is not None and x.name in found]
            if len(shapes) == len(values):
                macs = count_macs(node.op_type, *shapes)
                unknown[str(node.name)].macs = macs // (batch[0] if is_open and batch else 1)

    def step_by_step(
        self, runtime: str, found: Agreement, min_sqnr: float
    ) -> tuple[Agreement, str]:
        """Compare every quantized tensor on its own; return the worst, and what is wrong with it."""
        steps, outputs = self.stepwise.run(runtime)
        worst = max(steps, key=lambda step: step.lsb, default=None)
        if worst is not None:
            found = replace(found, local_lsb=worst.lsb, local_layer=worst.layer)
        noisiest = min(steps, key=lambda step: step.sqnr, default=None)
        if worst is not None and runtime == PLAIN and worst.lsb > ONE_STEP:
            return found, _explain(worst, runtime)
        if noisiest is not None and noisiest.is_off(min_sqnr):
            return found, _explain(noisiest, runtime)
        last = compare(self.outputs, outputs, self.received[runtime], self.steps)
        if not last.sqnr >= min_sqnr:
            return found, _far(last, runtime, min_sqnr)
        return found, self._other_sizes(min_sqnr) if runtime == PLAIN else ""

    def is_exact_in_float(self, min_sqnr: float) -> bool:
        """Whether the file is right in kernels that do not round activations which nobody quantized.

        ONNX Runtime's MatMulNBits rounds them to 8 bits, about 60 dB per layer; over dozens of layers this
        adds up.
        """
        found = self.agreement(EXACT)
        return not self.step_by_step(EXACT, found, min_sqnr)[1]

    def _other_sizes(self, min_sqnr: float) -> str:
        """Return what is wrong with batches of other sizes, where the file takes any."""
        if not self.is_open:
            return ""
        sizes = self.draft.sizes
        bytes_per_row = sum(x.nbytes // max(len(x), 1) for x in self.batches[0].values() if x.ndim)
        for rows in [0, *([] if sizes is None else sizes.to_try())]:
            if rows * bytes_per_row > _LARGEST:
                return (
                    f"the model was traced for batches of {sizes}, and whether it takes another way "
                    f"beyond cannot be tried: {rows} rows are too many. {_FIXED}"
                )
            fault = self._other_size(rows, min_sqnr)
            if fault:
                held = "" if sizes is None or not str(sizes) else f" (it was traced for {sizes})"
                return f"{fault}: the model takes another way there{held}. {_FIXED}"
        return ""

    def _other_size(self, rows: int, min_sqnr: float) -> str:
        """Return what is wrong with a batch of one size, 0 for the usual one."""
        inputs = self.simulation.other_size(rows)
        feeds = self.feeds(inputs)
        count = len(next(iter(feeds.values())))
        try:
            simulation = replace(self.simulation, inputs=inputs)
            simulation.again(inputs)
        except ExportError:
            self.refused += [str(rows)] if rows else []
            return ""  # the model itself insists on its size
        try:
            steps, outputs = Stepwise(self.data, self.draft, simulation, feeds).run(PLAIN)
            (received,) = run(PLAIN, self.data, [feeds])
            last = compare(self.outputs, outputs, received, self.steps)
        except Exception as error:  # those of runtimes share no base
            return f"for {_rows(count)} the file does not run ({first_line(error)}), and the model does"
        if all(step.lsb <= ONE_STEP for step in steps) and last.sqnr >= min_sqnr:
            return ""
        return (
            f"for {_rows(count)} the file does not compute what the model does ({last.sqnr:.1f} dB), for "
            f"{len(next(iter(self.batches[0].values())))} it does"
        )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _far(found: Agreement, runtime: str, min_sqnr: float) -> str:
    return (
        f"output {found.output!r} as executed by {runtime} is {found.sqnr:.1f} dB from the simulation "
        f"(largest difference {found.max_error:.3g}), expected min_sqnr={min_sqnr:g} dB or more."
    )


def _explain(step: Step, runtime: str) -> str:
    text = (
        f"the {step.tensor} of layer {step.layer!r} as executed by {runtime} is {step.lsb:g} steps of its "
        f"grid from the simulation ({step.sqnr:.1f} dB), given the same inputs."
    )
    if runtime == FAST:
        text += (
            " Without integer kernels the file is right: they saturate on this CPU. Give more data to see "
            "it coming (calibration=batches), or that layer 7-bit weights."
            if not cpu_has_wide_dot()
            else " Without optimizations the file is right: it is the runtime's integer kernel that differs."
        )
    return text


def _is_given(value: Any) -> bool:
    """Whether a tensor is a constant or an input of the file."""
    return bool(value.is_initializer() or value.is_graph_input())


def _step(value: Any) -> float | None:
    """Return the step of the grid that a tensor lies on, None if it lies on none."""
    while value.producer() is not None and value.producer().op_type in MOVERS:
        value = value.producer().inputs[0]
    node = producer(value, "DequantizeLinear")
    scale = None if node is None else array_of(node.inputs[1])
    return float(scale) if scale is not None and scale.ndim == 0 else None
