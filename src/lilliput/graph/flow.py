"""How tensors flow through a model: which calls of layers produce and read which values.

A value is a number that identifies one tensor of one forward pass. Frameworks record a :class:`Flow`;
reading it is independent of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Operation:
    """One elementary operation.

    ``kind`` is its effect on values: ``'norm'`` (a batch norm), ``'clip'`` (ReLU, ReLU6), ``'same'``
    (moves or picks entries: reshape, max pooling), ``'add'``, or ``''`` for anything else. ``paths``
    are the modules it ran in, outermost first. ``bounds`` are those of a clip, if known.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    paths: tuple[str, ...]
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module: its input and output values."""

    path: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Flow:
    """All operations and module calls of one forward pass, in order."""

    operations: tuple[Operation, ...]
    calls: tuple[ModuleCall, ...]

    @cached_property
    def readers(self) -> dict[int, list[Operation]]:
        """The operations that read each value."""
        found: dict[int, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            for value in dict.fromkeys(operation.inputs):
                found[value].append(operation)
        return found

    @cached_property
    def makers(self) -> dict[int, Operation]:
        """The operation that produced each value."""
        return {value: op for op in self.operations for value in op.outputs}

    def only_call(self, paths: Iterable[str]) -> ModuleCall | None:
        """Return the call of the module with these paths, or None unless it is called exactly once."""
        wanted = set(paths)
        found = [call for call in self.calls if call.path in wanted]
        return found[0] if len(found) == 1 else None

    def end_of_layer(self, value: int, kinds: tuple[str, ...] = ("norm", "clip")) -> int:
        """Return the value after the norm and the clip of a layer, if nothing else reads its output."""
        for kind in kinds:
            readers = self.readers.get(value, [])
            if len(readers) == 1 and readers[0].kind == kind and readers[0].inputs[0] == value:
                value = readers[0].outputs[0]
        return value

    def bounds_of(self, value: int) -> tuple[float, float] | None:
        """Return the bounds of the clip that produced a value, or None if there are none."""
        maker = self.makers.get(value)
        return None if maker is None or maker.kind != "clip" else maker.bounds

    def modules_returning(self, value: int) -> list[str]:
        """Return the modules, called once, that produce and return a value, innermost first.

        Modules that only pass it on (``nn.Identity``) are excluded: others may read it before.
        """
        counts: dict[str, int] = defaultdict(int)
        for call in self.calls:
            counts[call.path] += 1
        maker = self.makers.get(value)
        inside = set() if maker is None else {path for path in maker.paths if path}
        return [
            call.path
            for call in self.calls
            if call.path in inside and call.outputs == (value,) and counts[call.path] == 1
        ]

    def norm_after(self, paths: Iterable[str]) -> str:
        """Return the path of the batch norm that is the only reader of a layer's output, or ''."""
        call = self.only_call(paths)
        if call is None or len(call.outputs) != 1:
            return ""
        readers = self.readers.get(call.outputs[0], [])
        if len(readers) != 1 or readers[0].kind != "norm":
            return ""
        own = self.only_call([readers[0].paths[-1]])
        return (
            readers[0].paths[-1]
            if own is not None and own.outputs == readers[0].outputs[:1]
            else ""
        )
