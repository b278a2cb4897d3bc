"""Lower a captured graph to XNNPACK, execute the program, and determine which parts XNNPACK executes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from lilliput.errors import ExportError
from lilliput.frameworks.exporting.layer import Layer
from lilliput.frameworks.exporting.simulation import Array, first_line, to_array
from lilliput.frameworks.logs import silenced
from lilliput.frameworks.torch.capture import quiet
from lilliput.frameworks.torch.executorch.capture import DEQUANTIZE_WEIGHT, Captured
from lilliput.frameworks.torch.executorch.passes import ATEN, LAYERS, name_of, value_of, why_float
from lilliput.frameworks.torch.executorch.support import (
    list_operators,
    outside_core,
    without_kernel,
)
from lilliput.frameworks.work import default_threads
from lilliput.graph.onnx_macs import count_macs

_OPS = {
    ATEN.conv1d.default: "Conv",
    ATEN.conv2d.default: "Conv",
    ATEN.conv2d.padding: "Conv",
    ATEN.conv3d.default: "Conv",
    ATEN.conv_transpose2d.input: "ConvTranspose",
    ATEN.linear.default: "Gemm",
    ATEN.matmul.default: "MatMul",
    ATEN.bmm.default: "MatMul",
    ATEN.scaled_dot_product_attention.default: "Attention",
}


# torch's numbers of data types.
_DTYPES = {0: "uint8", 1: "int8", 3: "int32", 4: "int64", 6: "float32", 11: "bool"}


@dataclass(frozen=True)
class Program:
    """The bytes of a file, and the graph outside XNNPACK."""

    data: bytes
    edge: Any


def lower(captured: Captured, more: Sequence[fx.Node] = ()) -> Program:
    """Return a program that also returns these nodes."""
    with quieter():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

        exported = None
        try:
            exported = captured.export(more)
            edge = to_edge_transform_and_lower(
                exported,
                partitioner=[XnnpackPartitioner()],
                compile_config=EdgeCompileConfig(_check_ir_validity=False),
            )
            left = _weights_outside(edge.exported_program())
            if left:
                raise LeftOutError(left)
            program = edge.to_executorch()
        except LeftOutError:
            raise
        except Exception as error:  # those of exir have no common base
            raise LoweringError(_why_not(exported, error)) from error
        if unknown := without_kernel(program.exported_program().graph.nodes):
            raise LoweringError(
                f"ExecuTorch's runtime has no kernel for {list_operators(unknown)}; replace the operator, "
                "or export to ONNX."
            )
        return Program(program.buffer, edge.exported_program())


def _why_not(exported: Any, error: Exception) -> str:
    """Return why lowering failed, with the layers whose operators are likely the cause."""
    found = f"ExecuTorch cannot lower the model: {type(error).__name__}: {first_line(error)}"
    suspects = [] if exported is None else outside_core(exported)
    if not suspects:
        return found
    return (
        f"{found.removesuffix('.')}. Operators outside PyTorch's core: {list_operators(suspects)}."
    )


class LoweringError(ExportError):
    """ExecuTorch cannot write the captured graph as a program."""


class LeftOutError(ExportError):
    """XNNPACK left layers with integer weights out; ``weights`` are their names."""

    def __init__(self, weights: set[str]) -> None:
        super().__init__(f"XNNPACK left layers with integer weights out: {', '.join(weights)}.")
        self.weights = weights


def _weights_outside(edge: Any) -> set[str]:
    """Return the integer weights outside XNNPACK."""
    names = _names_of(edge.graph_signature)
    nodes = [x for x in edge.graph.nodes if x.op == "call_function"]
    return {names[x.args[0].name] for x in nodes if "dequantize_per_channel" in str(x.target)}


def _names_of(signature: Any) -> dict[str, str]:
    """Return the attributes of the captured module that the constants of a program come from."""
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


class Execution:
    """A program, loaded into ExecuTorch's runtime."""

    def __init__(self, data: bytes) -> None:
        with quieter():
            from executorch.runtime import Runtime

            self.threads = start_threads()
            self.program = Runtime.get().load_program(data)
            self.method = self.program.load_method("forward")

    def tensors(self) -> list[tuple[str, str, tuple[int, ...], str]]:
        """Return kind, name, shape and type of inputs and outputs; a dynamic batch has its largest size."""
        meta = self.method.metadata
        pairs = [("input", i, meta.input_tensor_meta(i)) for i in range(meta.num_inputs())]
        pairs += [("output", i, meta.output_tensor_meta(i)) for i in range(meta.num_outputs())]
        return [
            (kind, f"{kind}_{i}", tuple(x.sizes()), _DTYPES.get(x.dtype(), "float32"))
            for kind, i, x in pairs
        ]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs."""
        tensors = [torch.from_numpy(x) for x in arrays]
        return [to_array(x).copy() for x in self.method.execute(tensors)]


@cache
def start_threads() -> int:
    """Start the threads that all programs of this process share; return their number.

    It is torch's number of threads when the first program is loaded: replacing them later, while a
    program uses them, hangs.
    """
    from executorch.extension.pybindings import portable_lib

    if portable_lib._threadpool_get_thread_count() != default_threads():
        portable_lib._unsafe_reset_threadpool(default_threads())
    return int(portable_lib._threadpool_get_thread_count())


@contextmanager
def quieter() -> Iterator[None]:
    """Hide messages of torch, torchao and ExecuTorch about their own code."""
    with quiet(), silenced("torchao"):
        yield


def list_layers(captured: Captured, program: Program) -> list[Layer]:
    """Return all layers that multiply, with their kernel: which XNNPACK executes, and which use integers."""
    inside = _weights_inside(program)
    layers = []
    for node in captured.module.graph.nodes:
        op = _OPS.get(node.target)
        if op is None:
            continue
        key = _weight_name(node)
        is_integer, reason = inside.get(key, False), why_float(node)
        kernel = (
            f"XNNPACK {'qs8' if is_integer else 'f32'}" if key in inside else "ExecuTorch's own"
        )
        if not reason and not is_integer:
            reason = "XNNPACK's partitioner left it out"
        dtype = "" if not key else "float" if reason else "int8"
        layers.append(
            Layer(
                name_of(node),
                op,
                dtype,
                _macs(captured.module, node, op),
                not reason,
                kernel,
                reason,
            )
        )
    return layers


def _weight_name(node: fx.Node) -> str:
    """Return the attribute of a layer's weight, or an empty string."""
    weight: Any = node.args[1] if node.target in LAYERS else None
    if weight is not None and weight.target is DEQUANTIZE_WEIGHT:
        weight = weight.args[0]
    return str(weight.target) if weight is not None and weight.op == "get_attr" else ""


def _weights_inside(program: Program) -> dict[str, bool]:
    """Return the weights that XNNPACK multiplies by, and whether they are integers."""
    found: dict[str, bool] = {}
    for node in program.edge.graph.find_nodes(op="get_attr"):
        held = getattr(program.edge.graph_module, node.target).original_module
        names = _names_of(held.graph_signature)
        for reader in held.graph.nodes:
            for weight in reader.all_input_nodes if _is_product(reader) else ():
                is_integer = weight.op == "call_function" and "dequantize" in str(weight.target)
                source = weight.all_input_nodes[0] if is_integer else weight
                if source.name in names:
                    found[names[source.name]] = is_integer
    return found


def _is_product(node: fx.Node) -> bool:
    return node.op == "call_function" and any(
        name in str(node.target) for name in ("aten.convolution", "aten.linear", "aten.addmm")
    )


def _macs(module: fx.GraphModule, node: fx.Node, op: str) -> int:
    """Return the multiplications for one example, or for all of them if the batch is fixed."""
    inputs = [_shape(module, x) for x in node.args if isinstance(x, fx.Node)]
    output = _shape(module, node)
    rows = output[0] if isinstance(node.meta["val"].shape[0], torch.SymInt) else 1
    if op == "Gemm":  # a Linear on sequences, too
        return math.prod(output) * inputs[0][-1] // rows
    return count_macs(op, inputs, [output]) // rows


def _shape(module: fx.GraphModule, node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a tensor in the trace; quantizing does not change it."""
    while node.op == "call_function" and "val" not in node.meta:
        node = node.all_input_nodes[0]
    value = value_of(module, node) if node.op == "get_attr" else node.meta["val"]
    return tuple(x.node.hint if isinstance(x, torch.SymInt) else x for x in value.shape)
