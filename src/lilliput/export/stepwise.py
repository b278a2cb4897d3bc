"""Compare an ONNX file with the simulation tensor by tensor, each given the preceding tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lilliput.export.packed import Packed
from lilliput.export.passes.dynamic import DYNAMIC
from lilliput.export.passes.graph import Draft, array_of, producer
from lilliput.export.run import Array, Execute, Feeds, executor
from lilliput.export.steps import Integers, Step, compare_steps
from lilliput.frameworks.exporting.simulation import Simulation


@dataclass(frozen=True)
class Compared:
    """The outcome of a comparison.

    Parameters
    ----------
    steps : list of Step
        All quantized tensors, in order of execution.
    expected : list of array
        The model's outputs that follow from them.
    received : list of array
        The outputs of the file.
    """

    steps: list[Step]
    expected: list[Array]
    received: list[Array]


class Stepwise:
    """The comparison for one file; ``run`` does it for a runtime, which is opened once."""

    def __init__(self, data: Packed, draft: Draft) -> None:
        self.tensors = {k: found for k, v in draft.tensors.items() if (found := integers_of(v))}
        # The integers of all quantized tensors, which can be outputs without affecting the kernels.
        wanted = (name for x in self.tensors.values() for name in x.names)
        self.data, self.names = data.with_outputs(wanted)
        self.count = len(draft.graph.outputs)
        self._opened: dict[str, Execute] = {}

    def run(self, runtime: str, simulation: Simulation, feeds: Feeds) -> Compared:
        """Compare the file with the model on the same inputs."""
        if runtime not in self._opened:
            self._opened[runtime] = executor(runtime, self.data)
        values = self._opened[runtime](feeds)
        found = dict(zip(self.names, values, strict=True))
        steps, expected = compare_steps(simulation, self.tensors, found)
        return Compared(steps, expected, values[: self.count])

    def close(self) -> None:
        """Release the memory of all runtimes."""
        self._opened.clear()


def integers_of(value: Any) -> Integers | None:
    """Return the integers behind a dequantized tensor, or None if it has no single scale."""
    node = producer(value, "DequantizeLinear")
    quantize = producer(value if node is None else node.inputs[0], DYNAMIC)
    if quantize is not None:
        return Integers(*(str(x.name) for x in quantize.outputs))
    integers = None if node is None else node.inputs[0]
    if node is None or integers is None or integers.is_initializer():
        return None
    scale, zero = (array_of(x) for x in node.inputs[1:3])
    if scale is None or scale.ndim:
        return None
    return Integers(str(integers.name), float(scale), 0.0 if zero is None else float(zero))
