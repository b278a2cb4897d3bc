"""Find layers that can be changed without changing what a model computes.

A :class:`~lilliput.graph.flow.Flow` records the readers of each value. This adds the information needed to
move a factor from one layer to the next: the exact operation (a factor passes through ReLU, but not through
ReLU6), and whether anything but the layer itself reads its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from lilliput.frameworks.torch.fastpath import calling_modules
from lilliput.frameworks.torch.instrument import quantizers_in
from lilliput.frameworks.torch.weights import plain_type
from lilliput.frameworks.wrapping import marking, step_aside
from lilliput.graph.flow import Flow, ModuleCall, Operation

_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class PlainLayer:
    """A convolution or linear layer that is called once and shares no parameters."""

    wrapper: Any
    path: str
    module: Any
    call: ModuleCall

    @property
    def weight(self) -> nn.Parameter:
        """The raw weight."""
        found: nn.Parameter = self.module._parameters["weight"]
        return found

    @property
    def bias(self) -> nn.Parameter | None:
        """The raw bias."""
        found: nn.Parameter | None = self.module._parameters["bias"]
        return found

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return int(getattr(self.module, "groups", 1))


@dataclass(frozen=True)
class Norm:
    """The batch norm after a layer, and the value it returns."""

    path: str
    module: Any
    value: int


class Trace:
    """One forward pass: the flow of tensors, the name of each operation, the readers of parameters."""

    def __init__(self, model: nn.Module, flow: Flow, witness: _Witness) -> None:
        self.modules = dict(model.named_modules())
        self.flow = flow
        self._names: dict[int, str] = {}
        self._dimensions: dict[int, int] = {}
        self._readers: dict[int, list[tuple[str, ...]]] = {}
        seen = witness.seen[-len(flow.operations) :]  # earlier ones belong to a failed attempt
        for operation, (name, dimensions, parameters) in zip(flow.operations, seen, strict=True):
            for value in operation.outputs[:1]:
                self._names[value], self._dimensions[value] = name, dimensions
            for parameter in parameters:
                self._readers.setdefault(parameter, []).append(operation.paths)
        roots = [call for call in flow.calls if not call.path]
        self._returned = {value for call in roots for value in call.outputs}

    def name_of(self, operation: Operation) -> str:
        """Return the name of an operation, or '' if it has no result."""
        return self._names.get(operation.outputs[0], "") if operation.outputs else ""

    def reader(self, value: int) -> Operation | None:
        """Return the only operation that reads a value; None if there are others or the model returns it."""
        readers = self.flow.readers.get(value, [])
        return readers[0] if len(readers) == 1 and not self.is_returned(value) else None

    def is_returned(self, value: int) -> bool:
        """Whether the model returns a value, or may return it."""
        return not self._returned or value in self._returned

    def is_read_by(self, *layers: PlainLayer) -> bool:
        """Whether only these layers read the value that they all read."""
        (value,) = {layer.call.inputs[0] for layer in layers}
        paths = {layer.path for layer in layers}
        readers = self.flow.readers.get(value, [])
        return not self.is_returned(value) and all(paths & set(x.paths) for x in readers)

    def is_private(self, parameter: Any, path: str) -> bool:
        """Whether a parameter is read inside one module only."""
        readers = self._readers.get(id(parameter), [])
        return bool(readers) and all(path in paths for paths in readers)

    def norm_after(self, layer: PlainLayer) -> Norm | None:
        """Return the batch norm that is the only reader of a layer's output."""
        path, value = self.flow.norm_after([layer.path]), layer.call.outputs[0]
        if not path or self.is_returned(value) or self.modules[path].running_var is None:
            return None
        if isinstance(layer.module, nn.Linear) and self._dimensions.get(value) != 2:
            return None  # the norm counts the second axis, the layer the last one
        (call,) = (call for call in self.flow.calls if call.path == path)
        return Norm(path, self.modules[path], call.outputs[0])

    def has_relu(self, layer: PlainLayer) -> bool:
        """Whether a ReLU is the only reader of the output of a layer or its norm."""
        norm = self.norm_after(layer)
        reader = self.reader(layer.call.outputs[0] if norm is None else norm.value)
        return reader is not None and self.name_of(reader) == "relu"

    def plain_layers(self, wrappers: Sequence[Any]) -> list[PlainLayer]:
        """Return the layers that compute ``W x + b`` and nothing else, in the order of calls."""
        found = [x for x in self.called(wrappers) if self._is_plain(x)]
        order = {call.path: index for index, call in enumerate(self.flow.calls)}
        return sorted(found, key=lambda layer: order[layer.path])

    def called(self, wrappers: Sequence[Any]) -> list[PlainLayer]:
        """Return the layers that are called once, with one tensor, whatever they compute."""
        return [layer for wrapper in wrappers if (layer := self._called(wrapper))]

    def _called(self, wrapper: Any) -> PlainLayer | None:
        owners = wrapper.layer_info.owners
        call = self.flow.only_call(owners[0].paths)
        if len(owners) > 1 or call is None or len(call.inputs) != 1 or len(call.outputs) != 1:
            return None
        return PlainLayer(wrapper, call.path, owners[0].module, call)

    def _is_plain(self, layer: PlainLayer) -> bool:
        """Whether a layer computes ``W x + b`` by parameters that no other reads."""
        weight, bias = (layer.module._parameters.get(name) for name in ("weight", "bias"))
        held = [x for x in (weight, bias) if x is not None]
        is_own = all(self.is_private(x, layer.path) for x in held)
        return weight is not None and is_own and _computes_plainly(layer.module)


def record(model: nn.Module, run: Callable[[], Flow]) -> Trace:
    """Return the trace of a model in float while ``run`` records its flow."""
    witness = _Witness()
    with in_float(model), calling_modules(), witness:
        flow = run()
    return Trace(model, flow, witness)


def in_float(model: nn.Module) -> AbstractContextManager[None]:
    """A context in which the quantizers of a model are disabled."""
    return marking(step_aside, quantizers_in(model))


def _computes_plainly(module: nn.Module) -> bool:
    """Whether a layer has torch's own forward, not one that changes its weight."""
    cls = plain_type(type(module))
    for base in _PLAIN:
        if issubclass(cls, base):
            names = ("forward", "_conv_forward")
            return all(getattr(cls, x, None) is getattr(base, x, None) for x in names)
    return False


class _Witness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the same operations as the recorder of the flow, in the same order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, int, list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func._overloadpacket._qualified_op_name.split("::")[1].rstrip("_")
        first = next((x for x in tree_flatten(output)[0] if isinstance(x, Tensor)), None)
        given = tree_flatten((args, kwargs))[0]
        parameters = [id(x) for x in given if isinstance(x, nn.Parameter)]
        self.seen.append((name, 0 if first is None else first.dim(), parameters))
        return output
