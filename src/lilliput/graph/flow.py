"""How tensors flow through a model: which calls of layers make and read which values.

A value is a number that represents one tensor of one forward. Frameworks record a :class:`Flow`;
reading it needs none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Operation:
    """One elementary operation.

    ``kind`` says what it does to values: ``'norm'`` (a batch norm), ``'clip'`` (ReLU, ReLU6), ``'same'``
    (moves or picks entries: reshape, max pooling), ``'add'``, or ``''`` for anything else. ``paths``
    are the modules it ran in, outermost first. ``bounds`` are those of a clip, where they are known.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    paths: tuple[str, ...]
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module: the values that went in and came out."""

    path: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Flow:
    """All operations and module calls of one forward, in order."""

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
        """The operation that made each value."""
        return {value: op for op in self.operations for value in op.outputs}

    def only_call(self, paths: Iterable[str]) -> ModuleCall | None:
        """Return the call of a module that goes by these paths, None unless it is called once."""
        wanted = set(paths)
        found = [call for call in self.calls if call.path in wanted]
        return found[0] if len(found) == 1 else None

    def end_of_layer(self, value: int, kinds: tuple[str, ...] = ("norm", "clip")) -> int:
        """Return the value after the norm and the clipping that follow a layer, if nothing else does."""
        for kind in kinds:
            readers = self.readers.get(value, [])
            if len(readers) == 1 and readers[0].kind == kind and readers[0].inputs[0] == value:
                value = readers[0].outputs[0]
        return value

    def bounds_of(self, value: int) -> tuple[float, float] | None:
        """Return the bounds of the clip that made a value, None if none did or they are not known."""
        maker = self.makers.get(value)
        return None if maker is None or maker.kind != "clip" else maker.bounds

    def modules_returning(self, value: int) -> list[str]:
        """Return the modules, called once, that make and return a value, innermost first.

        One that only passes it on (``nn.Identity``) is not among them: others may read it before.
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
        """Return the module of the batch norm that alone reads what a layer returns, '' if none."""
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
