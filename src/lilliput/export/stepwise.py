"""Compare an ONNX file with the simulation tensor by tensor, each given what was computed before."""

from __future__ import annotations

from typing import Any

from lilliput.export.graph import Draft, array_of, producer
from lilliput.export.packed import Packed
from lilliput.export.places import Simulation
from lilliput.export.run import Array, Feeds, run
from lilliput.export.steps import Integers, Step, compare_steps


class Stepwise:
    """The comparison for one file; ``run`` does it for a runtime."""

    def __init__(self, data: Packed, draft: Draft, simulation: Simulation, feeds: Feeds) -> None:
        self.data, self.simulation, self.feeds = data, simulation, feeds
        self.tensors = {k: found for k, v in draft.tensors.items() if (found := _integers(v))}

    def run(self, runtime: str) -> tuple[list[Step], list[Array]]:
        """Return all steps in order of execution, and the model's outputs that follow from them."""
        return compare_steps(self.simulation, self.tensors, self._values(runtime))

    def _values(self, runtime: str) -> dict[str, Array]:
        """Return the integers of all quantized tensors, without keeping any kernel from being used."""
        data, names = self.data.with_outputs(x.name for x in self.tensors.values())
        (values,) = run(runtime, data, [self.feeds])
        return dict(zip(names, values, strict=True))


def _integers(value: Any) -> Integers | None:
    """Return the integers behind a dequantized tensor, None if it has no single scale."""
    node = producer(value, "DequantizeLinear")
    integers = None if node is None else node.inputs[0]
    if node is None or integers is None or integers.is_initializer():
        return None
    scale, zero = (array_of(x) for x in node.inputs[1:3])
    if scale is None or scale.ndim:
        return None
    return Integers(str(integers.name), float(scale), 0.0 if zero is None else float(zero))
