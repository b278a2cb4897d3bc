"""Small edits of the graph of a LiteRT file: read constants, add tensors and operators, drop dead ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lilliput.export.keras.litert.schema import names, schema
from lilliput.frameworks.exporting.simulation import Array

# The lowest version of an operator that supports int8, as TensorFlow's converter writes it.
_VERSIONS = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), 3),
    **dict.fromkeys(("FULLY_CONNECTED",), 4),
    **dict.fromkeys(("ADD", "SUB", "MUL", "CONCATENATION", "MAX_POOL_2D", "MEAN", "RELU"), 2),
    **dict.fromkeys(("AVERAGE_POOL_2D", "RELU6", "LEAKY_RELU", "TRANSPOSE", "PAD", "SPLIT"), 2),
    **dict.fromkeys(("STRIDED_SLICE", "SLICE", "PACK", "TRANSPOSE_CONV", "GATHER"), 2),
    **dict.fromkeys(("RESIZE_NEAREST_NEIGHBOR", "BATCH_MATMUL", "MAXIMUM", "MINIMUM"), 2),
    **dict.fromkeys(("DEQUANTIZE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), 2),
}
_TYPES = {np.dtype(x): x.upper() for x in ("float32", "int8", "uint8", "int16", "int32", "int64")}


@dataclass(frozen=True, eq=False)
class Scales:
    """The scales and zero points of a tensor: one for all, or one for each entry of ``axis``."""

    scale: Array
    zero: Array
    axis: int = 0

    def is_same(self, other: Scales) -> bool:
        """Whether integers represent the same numbers."""
        return np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)

    @property
    def is_single(self) -> bool:
        """Whether there is one scale for the whole tensor."""
        return self.scale.size == 1


@dataclass(eq=False)
class Draft:
    """The main graph of a LiteRT model under construction.

    Parameters
    ----------
    model : ModelT
        The whole file.
    tensors : dict
        From (placement, position, call) to the tensor of the quantized activation.
    """

    model: Any
    tensors: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @classmethod
    def read(cls, data: bytes) -> Draft:
        """Return the model in the bytes of a file."""
        draft = cls(schema().ModelT.InitFromPackedBuf(bytearray(data), 0))
        for operator in draft.operators:
            operator.inputs = [int(x) for x in operator.inputs]
            operator.outputs = [int(x) for x in operator.outputs]
        graph = draft.graph
        graph.inputs, graph.outputs = (
            [int(x) for x in graph.inputs],
            [int(x) for x in graph.outputs],
        )
        return draft

    @property
    def graph(self) -> Any:
        """The main graph; others are the bodies of loops."""
        return self.model.subgraphs[0]

    @property
    def operators(self) -> list[Any]:
        """The operators in order of execution."""
        return self.graph.operators  # type: ignore[no-any-return]

    # -- reading -------------------------------------------------------------------------------------

    def kind(self, operator: Any) -> str:
        """Return the kind of an operator, such as ``CONV_2D``."""
        code = self.model.operatorCodes[operator.opcodeIndex]
        return names("BuiltinOperator")[max(code.builtinCode, code.deprecatedBuiltinCode)]

    def of_kind(self, *kinds: str) -> list[Any]:
        """Return all operators of some kinds."""
        return [x for x in self.operators if self.kind(x) in kinds]

    def holds(self, operator: Any) -> bool:
        """Whether an operator is still in the graph."""
        return any(x is operator for x in self.operators)

    def tensor(self, index: int) -> Any:
        """Return a tensor."""
        return self.graph.tensors[index]

    def name(self, index: int) -> str:
        """Return the name of a tensor."""
        found = self.tensor(index).name
        return found.decode() if isinstance(found, bytes) else str(found or "")

    def dtype(self, index: int) -> str:
        """Return the type of a tensor, such as ``int8``."""
        return names("TensorType")[self.tensor(index).type].lower()

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of a tensor, with 1 for dynamic sizes."""
        found = self.tensor(index).shape
        return () if found is None else tuple(int(x) for x in found)

    def constant(self, index: int) -> Array | None:
        """Return the content of a constant, or None if the tensor is computed."""
        if index < 0 or self.dtype(index) not in {str(x) for x in _TYPES}:
            return None
        data = self.model.buffers[self.tensor(index).buffer].data
        if data is None or not len(data) or index in self.graph.inputs:
            return None
        return np.frombuffer(bytes(data), self.dtype(index)).reshape(self.shape(index))

    def scales(self, index: int) -> Scales | None:
        """Return the scales of a tensor, or None."""
        found = self.tensor(index).quantization
        if found is None or found.scale is None or not len(found.scale):
            return None
        zero = np.asarray(found.zeroPoint, np.int64)
        return Scales(np.asarray(found.scale, np.float32), zero, int(found.quantizedDimension))

    def maker(self, index: int) -> Any:
        """Return the operator that produces a tensor, or None for an input or constant."""
        return next((x for x in self.operators if index in x.outputs), None)

    def readers(self, index: int) -> list[Any]:
        """Return the operators that read a tensor."""
        return [x for x in self.operators if index in x.inputs]

    def source(self, index: int) -> int | None:
        """Return the int8 tensor with one scale behind a dequantized one, or None."""
        maker = self.maker(index)
        if maker is None or self.kind(maker) != "DEQUANTIZE":
            return None
        found: int = maker.inputs[0]
        scales = self.scales(found)
        return found if self.dtype(found) == "int8" and scales and scales.is_single else None

    # -- editing -------------------------------------------------------------------------------------

    def add_tensor(
        self, name: str, like: int, dtype: str, scales: Scales | None = None, data: Any = None
    ) -> int:
        """Add a tensor with the shape of another one, or of its ``data``, and return its number."""
        found = schema().TensorT()
        found.name = name.encode()
        found.type = getattr(schema().TensorType, dtype.upper())
        held = self.tensor(like)
        found.shape, found.shapeSignature = held.shape, held.shapeSignature
        found.hasRank = held.hasRank
        if data is not None:
            array = np.ascontiguousarray(data)
            found.shape, found.shapeSignature = np.asarray(array.shape, np.int32), None
            found.buffer = self._add_buffer(array)
        if scales is not None:
            found.quantization = _quantization(scales)
        self.graph.tensors.append(found)
        return len(self.graph.tensors) - 1

    def _add_buffer(self, array: Array) -> int:
        data = np.frombuffer(array.tobytes(), np.uint8)
        for number, buffer in enumerate(self.model.buffers[1:], 1):
            is_same = buffer.data is not None and len(buffer.data) == len(data)
            if is_same and np.array_equal(buffer.data, data):
                return number
        buffer = schema().BufferT()
        buffer.data = data
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    def make(self, kind: str, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        """Return a new operator without options."""
        operator = schema().OperatorT()
        operator.inputs, operator.outputs = list(inputs), list(outputs)
        operator.opcodeIndex = self._code(kind, _VERSIONS.get(kind, 1))
        return operator

    def insert_after(self, operator: Any, new: Any) -> None:
        """Insert an operator after another one."""
        self.operators.insert(_position(self.operators, operator) + 1, new)

    def insert_before(self, operator: Any, new: Any) -> None:
        """Insert an operator before another one."""
        self.operators.insert(_position(self.operators, operator), new)

    def remove(self, operator: Any) -> None:
        """Remove an operator."""
        del self.operators[_position(self.operators, operator)]

    def takes_integers(self, operator: Any) -> None:
        """Set the operator version that supports int8."""
        kind, code = self.kind(operator), self.model.operatorCodes[operator.opcodeIndex]
        version = max(code.version, _VERSIONS.get(kind, 1))
        operator.opcodeIndex = self._code(kind, version)

    def replace(self, old: int, new: int) -> None:
        """Redirect all readers of one tensor to another, including model outputs."""
        for operator in self.operators:
            operator.inputs = [new if x == old else x for x in operator.inputs]
        self.graph.outputs = [new if x == old else x for x in self.graph.outputs]
        self.tensors = {k: new if v == old else v for k, v in self.tensors.items()}

    def sweep(self) -> None:
        """Remove operators whose results are unused."""
        wanted = set(self.graph.outputs)
        kept = []
        for operator in reversed(self.operators):
            if wanted & set(operator.outputs) or not operator.outputs:
                wanted |= set(operator.inputs)
                kept.append(operator)
        self.graph.operators = kept[::-1]
        self.tensors = {k: v for k, v in self.tensors.items() if v in wanted}

    def _code(self, kind: str, version: int) -> int:
        number = getattr(schema().BuiltinOperator, kind)
        for index, code in enumerate(self.model.operatorCodes):
            same = max(code.builtinCode, code.deprecatedBuiltinCode) == number
            if same and code.version == version:
                return index
        code = schema().OperatorCodeT()
        code.builtinCode, code.deprecatedBuiltinCode = number, min(number, 127)
        code.version = version
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1


def _quantization(scales: Scales) -> Any:
    found = schema().QuantizationParametersT()
    found.scale = np.asarray(scales.scale, np.float32).reshape(-1)
    found.zeroPoint = np.asarray(scales.zero, np.int64).reshape(-1)
    found.quantizedDimension = scales.axis
    return found


def _position(operators: Iterable[Any], operator: Any) -> int:
    return next(i for i, x in enumerate(operators) if x is operator)
