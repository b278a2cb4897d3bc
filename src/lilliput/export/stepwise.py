"""Compare a file with the simulation tensor by tensor, each given what the runtime computed before.

A rounding that falls the other way by the last bit of a float makes the next layers round otherwise, too:
after a few layers two correct computations of the same network differ as much as rounding does
altogether. So each quantized tensor is compared on its own. The simulation runs once more, and every
tensor that it quantizes is replaced by what the runtime made of it, after the difference was noted. What
is left is the error of one layer, which is at most one step of its grid.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lilliput.backends.torch.wrapper import marking
from lilliput.config.layer import QuantType
from lilliput.export.graph import Draft, array_of, producer
from lilliput.export.run import Array, Feeds, run, sqnr
from lilliput.export.trace import Place, Simulation, evaluating, tensors_in

ONE_STEP = 1.01
_FEW = 0.05
Key = tuple[int, int, int]  # place, position, call: as in Draft.tensors


@dataclass(frozen=True)
class Step:
    """One quantized tensor: how far the runtime is from the simulation.

    ``lsb`` is the largest difference in steps of the grid, ``share`` how many entries differ at all.
    """

    layer: str
    tensor: str
    lsb: float
    sqnr: float
    share: float

    def is_off(self, min_sqnr: float) -> bool:
        """Whether this is more than a few roundings that fell the other way."""
        return self.sqnr < min_sqnr and (self.lsb > ONE_STEP or self.share > _FEW)


@dataclass(frozen=True)
class _Integers:
    """A tensor of the file as the runtime holds it: integers, their scale and zero point."""

    name: str
    scale: float
    zero: float

    def reals(self, integers: Array) -> Array:
        shifted = integers.astype(np.float32) - np.float32(self.zero)
        return np.asarray(shifted * np.float32(self.scale))


class Stepwise:
    """The comparison for one file; ``run`` does it for a runtime."""

    def __init__(self, data: bytes, draft: Draft, simulation: Simulation, feeds: Feeds) -> None:
        self.data, self.simulation, self.feeds = data, simulation, feeds
        self.tensors = {k: found for k, v in draft.tensors.items() if (found := _integers(v))}

    def run(self, runtime: str) -> tuple[list[Step], list[Array]]:
        """Return all steps in order of execution, and the model's outputs that follow from them."""
        values = self._values(runtime)
        numbers = {(id(p.wrapper), p.quant_type): i for i, p in enumerate(self.simulation.places)}
        calls: dict[int, int] = defaultdict(int)
        steps: list[Step] = []

        def force(wrapper: Any, kind: QuantType, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            results: tuple[Tensor, ...] = wrapper._quantizer().run(wrapper, kind, tensors)
            if kind is QuantType.WEIGHT:
                return results
            number = numbers[id(wrapper), kind]
            call, calls[number] = calls[number], calls[number] + 1
            place = self.simulation.places[number]
            return tuple(
                self._force(place, x, (number, i, call), values, steps)
                for i, x in enumerate(results)
            )

        args, kwargs = self.simulation.inputs
        with evaluating(self.simulation.model), marking(force):
            outputs = tensors_in(self.simulation.model(*args, **kwargs))
        return steps, [x.detach().cpu().float().numpy() for x in outputs]

    def _values(self, runtime: str) -> dict[str, Array]:
        """Return the integers of all quantized tensors, without keeping any kernel from being used."""
        import onnx

        proto = onnx.load_from_string(self.data)
        names = list(dict.fromkeys(x.name for x in self.tensors.values()))
        held = [output.name for output in proto.graph.output]
        wanted = [name for name in names if name not in held]
        proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(x) for x in wanted)
        (values,) = run(runtime, proto.SerializeToString(), [self.feeds])
        return dict(zip([*held, *wanted], values, strict=True))

    def _force(
        self, place: Place, expected: Tensor, key: Key, values: dict[str, Array], steps: list[Step]
    ) -> Tensor:
        found = self.tensors.get(key)
        if found is None or values[found.name].size != expected.numel():
            return expected
        received = found.reals(values[found.name]).reshape(tuple(expected.shape))
        wanted = expected.detach().cpu().float().numpy()
        steps_off = np.abs(wanted - received) / found.scale
        lsb, share = float(steps_off.max(initial=0.0)), float((steps_off > 0.5).mean())
        name, kind = place.wrapper.name, place.quant_type.value
        steps.append(Step(name, kind, round(lsb, 3), sqnr(wanted, received), share))
        return torch.from_numpy(received).to(expected)


def _integers(value: Any) -> _Integers | None:
    """Return the integers behind a dequantized tensor, None if it has no single scale."""
    node = producer(value, "DequantizeLinear")
    integers = None if node is None else node.inputs[0]
    if node is None or integers is None or integers.is_initializer():
        return None
    scale, zero = (array_of(x) for x in node.inputs[1:3])
    if scale is None or scale.ndim:
        return None
    return _Integers(str(integers.name), float(scale), 0.0 if zero is None else float(zero))
