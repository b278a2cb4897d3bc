"""Execute a file before it is written, and raise if it differs from the simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lilliput.errors import ExportError
from lilliput.export.file_check import compare_results, kept_results
from lilliput.export.guard.cpu import cpu_has_wide_dot
from lilliput.export.kernels import read_kernels
from lilliput.export.layers import fill_macs
from lilliput.export.packed import Packed
from lilliput.export.passes.graph import Draft, array_of, producer
from lilliput.export.passes.propagate import MOVERS
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
)
from lilliput.export.sizes.other_sizes import OtherSizeError, OtherSizes, explain_fault
from lilliput.export.steps import ONE_STEP, Key, Step
from lilliput.export.stepwise import Compared, Stepwise
from lilliput.frameworks.exporting.layer import Layer
from lilliput.frameworks.exporting.simulation import Inputs, Simulation, first_line, to_array

# Runtimes that must agree, besides the one without optimizations.
_DECISIVE = {"onnxruntime": FAST, "openvino": OPENVINO, "generic": PLAIN}


def check_file(
    result: ExportResult,
    data: Packed,
    draft: Draft,
    simulation: Simulation,
    min_sqnr: float,
    calibration: Iterable[Inputs],
    is_asked: bool = False,
) -> None:
    """Run the file in its target runtimes, and record the outcome in the result.

    ``is_asked``: whether the user passed the calibration inputs; inputs of sizes that the file does
    not accept are then an error, and skipped otherwise.
    """
    if PLAIN in data.runtimes:
        require_onnxruntime()
    check = _Check(data, draft, simulation, calibration, is_asked)
    result.notes += check.left_out
    result._compare = check.compare_layers
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder, "optimized.onnx")
        for runtime in data.runtimes:
            if runtime == OPENVINO and not (result.target == OPENVINO and has_openvino()):
                continue
            is_decisive = runtime in (PLAIN, _DECISIVE[result.target])
            if runtime == FAST and _saturates_only_here(result):
                is_decisive = False
            try:
                found = check.agreement(runtime, str(optimized) if runtime == FAST else "")
                found, fault = check.step_by_step(runtime, found, min_sqnr)
            except OtherSizeError:
                raise
            except Exception as error:
                text = f"{runtime} cannot run the file: {type(error).__name__}: {first_line(error)}"
                if is_decisive and result.target != "generic":
                    raise ExportError(text) from error
                result.notes.append(text)
                continue
            result.runtimes[runtime] = found
            rounded = _rounding(result.layers) if fault and runtime == FAST else ""
            if rounded and check.is_exact_in_float(min_sqnr):
                fault, is_decisive = f"{fault} {rounded}", False
            if fault and is_decisive:
                raise ExportError(fault)
            result.notes += [fault] if fault else []
        if result.target == "openvino" and not has_openvino():
            result.notes.append(
                "OpenVINO is not installed: the file was executed by ONNX Runtime only, and the kernels "
                "listed are those of ONNX Runtime."
            )
        if result.target == "openvino" and OPENVINO in result.runtimes:
            from lilliput.export.targets.openvino import fill_kernels, note_precision

            fill_kernels(data, result.layers)
            result.notes += note_precision()
        elif optimized.exists():
            read_kernels(optimized, result.layers, draft.graph)
    result.notes += check.others.notes()
    draft.limits = check.others.limits
    check.stepwise.close()
    if data.runtimes[0] in result.runtimes:
        check.fill_costs(result.layers, draft)


def _saturates_only_here(result: ExportResult) -> bool:
    """Whether the file targets CPUs with VNNI and its layers may saturate on this CPU, which has none."""
    is_for_others = result.cpu is not None and result.cpu.has_vnni and not cpu_has_wide_dot()
    return is_for_others and any(not row.is_changed for row in result.guarded)


def _rounding(layers: list[Layer]) -> str:
    """Return the kernels that round activations that the model does not quantize; empty if there are none."""
    if any(x.weight_only and x.op == "MatMul" for x in layers):
        return (
            "Its MatMulNBits kernel rounds activations to 8 bits, which is not simulated; with "
            f"float activations (session option {ACCURACY}=1) the file is correct."
        )
    if any(x.integer and x.op == "LSTM" for x in layers):
        return (
            "Its DynamicQuantizeLSTM kernel rounds the input and every "
            "state to 8 bits, which is not simulated; with the same "
            "weights in a float LSTM the file is correct."
        )
    return ""


class _Check:
    """The file, the simulation, and the batches to compare them on."""

    def __init__(
        self,
        data: Packed,
        draft: Draft,
        simulation: Simulation,
        calibration: Iterable[Inputs],
        is_asked: bool,
    ) -> None:
        self.data, self.simulation, self.draft = data, simulation, draft
        dims = [dim for value in draft.graph.inputs for dim in value.shape or ()]
        self.is_open = any(not isinstance(dim, int) for dim in dims)
        self.inputs = [str(value.name) for value in draft.graph.inputs]
        self.outputs = [str(value.name) for value in draft.graph.outputs]
        self.steps = [_step(value) for value in draft.graph.outputs]
        self.tensors = {key: (str(v.name), _step(v)) for key, v in draft.tensors.items()}
        self.is_asked = is_asked
        self.compared: dict[str, Compared] = {}  # by runtime
        self.received: dict[str, Any] = {}  # by runtime: the outputs of the first batch
        self.batches = [self.feeds(simulation.inputs)]
        self.stepwise = Stepwise(data, draft)
        rows = next((len(x) for x in self.batches[0].values() if x.ndim), 0)
        self.others = OtherSizes(simulation, draft.sizes, rows, lambda _: "")
        self.expected = [[to_array(x) for x in simulation.outputs]]
        if len(self.outputs) != len(self.expected[0]):
            raise ExportError(
                f"the file has {len(self.outputs)} outputs, the model {len(self.expected[0])}; "
                "return tensors that depend on the inputs."
            )
        self.left_out: list[str] = []
        for inputs in calibration:
            feeds = self.feeds(inputs)
            misfit = self._misfit(feeds)
            if misfit and is_asked:
                raise ExportError(
                    f"calibration: {misfit}; pass inputs of sizes that the file accepts."
                )
            if misfit:
                self.left_out = [f"inputs of calibrate() were not compared: {misfit}."]
                continue
            self.batches.append(feeds)
            self.expected.append([to_array(x) for x in simulation.again(inputs).outputs])

    def feeds(self, inputs: Inputs) -> Feeds:
        """Return the inputs by their names in the file."""
        found = self.simulation.by_name(self.inputs, inputs)
        return {name: to_array(x) for name, x in found.items()}

    def _misfit(self, feeds: Feeds) -> str:
        """Return the first input with a size that the file does not accept."""
        for value in self.draft.graph.inputs:
            received, dims = feeds[str(value.name)].shape, tuple(value.shape or ())
            pairs = zip(received, dims, strict=False)
            if len(received) != len(dims) or any(isinstance(d, int) and n != d for n, d in pairs):
                expected = ", ".join(str(d) for d in dims)
                return f"{value.name!r} has shape {received}, the file accepts ({expected})"
        return ""

    def agreement(self, runtime: str, optimized: str = "") -> Agreement:
        """Return the agreement of a runtime with the simulation over all batches.

        Without graph optimizations, which is slow, only the example inputs are compared, unless the user
        passed others; the session that exposes all tensors has then already computed the outputs of the
        file.
        """
        if runtime == PLAIN and not self.is_asked:
            received = [self._stepped(runtime).received]
        else:
            received = run(runtime, self.data, self.batches, optimized)
        self.received[runtime] = received[0]
        names, steps, expected, outputs = [], [], [], []
        for wanted, got in zip(self.expected[: len(received)], received, strict=True):
            names += self.outputs
            steps += self.steps
            expected += wanted
            outputs += got
        return compare(names, expected, outputs, steps)

    def compare_layers(self, runtime: str = FAST) -> list[dict[str, Any]]:
        """Return the agreement of each quantized activation, in order of execution."""
        results = kept_results(self.simulation, self.expected[0])
        known = self.stepwise.tensors
        names = [known[k].names if k in known else [x] for k, (x, _) in self.tensors.items()]
        found = self._inside(runtime, [x for some in names for x in some])
        read: dict[Key, tuple[Any, float | None]] = {}
        for key, (name, step) in self.tensors.items():
            held = known.get(key)
            own = found[name] if held is None else held.reals(found)
            read[key] = own, step if held is None else held.step(found)
        return compare_results(self.simulation, results, read)

    def _inside(self, runtime: str, names: Iterable[str]) -> Feeds:
        """Return tensors inside the graph, and its outputs, on the example inputs."""
        data, held = self.data.with_outputs(names)
        (values,) = run(runtime, data, self.batches[:1])
        return dict(zip(held, values, strict=True))

    def fill_costs(self, layers: list[Layer], draft: Draft) -> None:
        """Count MACs where the trace does not contain the shapes."""

        def execute(names: list[str]) -> Feeds:
            return {**self._inside(self.data.runtimes[0], names), **self.batches[0]}

        first = next((list(x.shape) for x in draft.graph.inputs if x.shape), [0])
        is_open = not isinstance(first[0], int)
        fill_macs(layers, draft.graph, execute, self.others.rows if is_open else 1)

    def step_by_step(
        self, runtime: str, found: Agreement, min_sqnr: float
    ) -> tuple[Agreement, str]:
        """Compare every quantized tensor separately; return the worst one and its fault."""
        found_here = self._stepped(runtime)
        steps = found_here.steps
        worst = max(steps, key=lambda step: step.lsb, default=None)
        if worst is not None:
            found = replace(found, local_lsb=worst.lsb, local_layer=worst.layer)
        noisiest = min(steps, key=lambda step: step.sqnr, default=None)
        if worst is not None and runtime == PLAIN and worst.lsb > ONE_STEP:
            return found, _explain(worst, runtime, "at most one step")
        if noisiest is not None and noisiest.is_off(min_sqnr):
            return found, _explain(noisiest, runtime, f"min_sqnr={min_sqnr:g} dB or more")
        last = compare(self.outputs, found_here.expected, self.received[runtime], self.steps)
        if not last.sqnr >= min_sqnr:
            return found, _far(last, runtime, min_sqnr)
        if runtime == self.data.runtimes[0] and self.is_open:
            self.others.fault_at = lambda simulation: self._fault_at(simulation, min_sqnr)
            self.others.check()
        return found, ""

    def _stepped(self, runtime: str) -> Compared:
        """Return the cached tensor-by-tensor comparison on the example inputs."""
        if runtime not in self.compared:
            found = self.stepwise.run(runtime, self.simulation, self.batches[0])
            self.compared[runtime] = found
        return self.compared[runtime]

    def is_exact_in_float(self, min_sqnr: float) -> bool:
        """Whether the file is correct with kernels that do not round unquantized activations.

        ONNX Runtime's MatMulNBits rounds them to 8 bits, about 60 dB per layer, its integer LSTM at every
        step; over dozens of layers or hundreds of steps this adds up.
        """
        found = self.agreement(EXACT)
        return not self.step_by_step(EXACT, found, min_sqnr)[1]

    def _fault_at(self, simulation: Simulation, min_sqnr: float) -> str:
        """Return the fault of the file on other inputs, given the model's outputs for them."""
        feeds = self.feeds(simulation.inputs)
        try:
            found = self.stepwise.run(self.data.runtimes[0], simulation, feeds)
            last = compare(self.outputs, found.expected, found.received, self.steps)
        except Exception as error:  # those of runtimes have no common base
            return explain_fault(error, 0.0)
        is_exact = self.data.runtimes[0] == PLAIN
        is_off = [x.lsb > ONE_STEP if is_exact else x.is_off(min_sqnr) for x in found.steps]
        if not any(is_off) and last.sqnr >= min_sqnr:
            return ""
        return explain_fault(None, last.sqnr)


def _far(found: Agreement, runtime: str, min_sqnr: float) -> str:
    return (
        f"output {found.output!r} as executed by {runtime} is {found.sqnr:.1f} dB from the simulation "
        f"(largest difference {found.max_error:.3g}), given the quantized tensors as it computed them; "
        f"expected min_sqnr={min_sqnr:g} dB or more."
    )


def _explain(step: Step, runtime: str, expected: str) -> str:
    text = (
        f"the {step.tensor} of layer {step.layer!r} as executed by {runtime} is {step.lsb:g} steps of its "
        f"grid from the simulation ({step.sqnr:.1f} dB), given the same inputs; expected {expected}."
    )
    if runtime == FAST:
        text += (
            " Without integer kernels the file is correct: they saturate on this CPU. Pass more data "
            "(calibration=batches) so that the export can prevent this, or give that layer 7-bit weights."
            if not cpu_has_wide_dot()
            else " Without optimizations the file is correct: the runtime's integer kernel differs."
        )
    return text


def _step(value: Any) -> float | None:
    """Return the quantization step of a tensor, or None if it is not quantized."""
    while value.producer() is not None and value.producer().op_type in MOVERS:
        value = value.producer().inputs[0]
    node = producer(value, "DequantizeLinear")
    scale = None if node is None else array_of(node.inputs[1])
    return float(scale) if scale is not None and scale.ndim == 0 else None
