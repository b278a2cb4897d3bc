"""Capture a model with quantize and dequantize operators instead of its quantizers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

# Importing it registers the operators quantized_decomposed.*, which XNNPACK's partitioner expects.
from torch.ao.quantization.fx import _decomposed  # noqa: F401
from torch.nn.functional import hardtanh
from torch.utils._pytree import tree_flatten

from lilliput.config.layer import QuantType
from lilliput.errors import ExportError, LilliputError
from lilliput.frameworks.exporting.grid import OnGrid, on_grid
from lilliput.frameworks.exporting.simulation import (
    Inputs,
    Placement,
    Simulation,
    as_simulated,
    first_line,
    key_of,
    to_array,
)
from lilliput.frameworks.exporting.sizes import BATCH
from lilliput.frameworks.torch.export.simulation import evaluating
from lilliput.frameworks.torch.export.sizes import open_shapes, resized
from lilliput.frameworks.torch.instrument import quantizers_in
from lilliput.frameworks.wrapping import marking

OPS: Any = torch.ops.quantized_decomposed
QUANTIZE, DEQUANTIZE = OPS.quantize_per_tensor.default, OPS.dequantize_per_tensor.default
DEQUANTIZE_WEIGHT = OPS.dequantize_per_channel.default
LOW, HIGH = -128, 127
Integers = tuple[Tensor, Tensor, Tensor, int]  # a weight, its scales and zero points, their axis
Key = tuple[int, int, int]  # placement, position, call
Grid = tuple[float, float]  # scale and zero point


@dataclass
class Captured:
    """A model as a graph of torch operators.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The model; its inputs are those of the model itself.
    inputs : pair of tuple and dict
        The arguments of the model.
    shapes : Any
        The dynamic sizes, in the form of ``torch.export``.
    tensors : dict
        From a quantized activation (placement, position, call) to its quantize node.
    notes : list of str
        Notes for the user.
    """

    module: fx.GraphModule
    inputs: Inputs
    shapes: Any
    tensors: dict[Key, fx.Node]
    notes: list[str] = field(default_factory=list)

    def export(self, more: Sequence[fx.Node] = ()) -> Any:
        """Return it as an exported program with a flat tuple of outputs, followed by these nodes."""
        graph: Any = self.module.graph
        end, codegen = next(node for node in graph.nodes if node.op == "output"), graph._codegen
        held, info = end.args, codegen.pytree_info
        outputs = (*held[0], *more)
        try:
            end.args = (outputs,)
            spec = tree_flatten(tuple(range(len(outputs))))[1]
            codegen.pytree_info = info._replace(out_spec=spec)
            self.module.recompile()
            args, kwargs = self.inputs
            return torch.export.export(
                self.module, args, kwargs, dynamic_shapes=self.shapes, strict=False
            )
        finally:
            end.args, codegen.pytree_info = held, info

    def grids(self) -> dict[Key, Grid]:
        """Return the grids of all quantized activations."""
        return {key: _written_grid(node) for key, node in self.tensors.items()}

    def output_grids(self) -> list[Grid | None]:
        """Return the grid of each output, or None."""
        end: Any = next(node for node in self.module.graph.nodes if node.op == "output")
        return [_written_grid(x) if x.target is DEQUANTIZE else None for x in end.args[0]]


def _written_grid(node: Any) -> Grid:
    return float(node.args[1]), float(node.args[2])


def capture(simulation: Simulation, max_batch: int, is_float: bool = False) -> Captured:
    """Return the graph of a model, on its integer grids.

    Parameters
    ----------
    simulation : Simulation
        The model with its quantizers; its only dynamic axis may be the batch.
    max_batch : int
        The largest number of rows; 0 for that of the example.
    is_float : bool
        Whether to omit all quantizers, for a float model to compare the speed with.
    """
    mark = _Marks(simulation, is_float)
    inputs, shapes = _open_batch(simulation, max_batch) if max_batch else (simulation.inputs, None)
    args, kwargs = inputs
    with evaluating(simulation.model), marking(mark, quantizers_in(simulation.model)):
        try:
            program = torch.export.export(
                simulation.model, args, kwargs, dynamic_shapes=shapes, strict=False
            )
        except LilliputError:
            raise
        except Exception as error:
            raise CaptureError(
                f"torch.export cannot capture {type(simulation.model).__name__}: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
    module: Any = program.module(check_guards=False)
    nodes = [node for node in module.graph.nodes if node.target is QUANTIZE]
    if len(nodes) != len(mark.keys):
        raise ExportError(
            f"the captured graph has {len(nodes)} quantized tensors, the simulation {len(mark.keys)}; a "
            "layer is quantized inside a branch or loop: move it out of torch.cond or similar operators."
        )
    return Captured(module, inputs, shapes, dict(zip(mark.keys, nodes, strict=True)))


class CaptureError(ExportError):
    """torch.export cannot capture the model."""


class _Marks:
    """Inserts quantize and dequantize operators instead of quantizers, and records which is which."""

    def __init__(self, simulation: Simulation, is_float: bool) -> None:
        self.simulation, self.is_float = simulation, is_float
        self.numbers = {placement.key: i for i, placement in enumerate(simulation.placements)}
        self.calls: dict[tuple[int, int], int] = defaultdict(int)
        self.keys: list[Key] = []
        # Created before tracing, while values can be read.
        placements = [] if is_float else simulation.placements
        self.weights = {p.key: _weight(p) for p in placements if p.is_weight}
        self.grids = {p.key: _grid_of(p) for p in placements if not p.is_weight and p.qparams}

    def __call__(
        self, wrapper: Any, kind: QuantType, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return the tensors as quantized."""
        if self.is_float:
            return tensors
        number = self.numbers[key_of(wrapper, kind)]
        placement = self.simulation.placements[number]
        if placement.is_weight:
            return (_dequantized(self.weights[placement.key]),)
        if placement.qparams is None or placement.qparams.is_result:
            tensors = as_simulated(wrapper, kind, tensors)
        if placement.qparams is None:
            return tensors
        return tuple(self._activation(x, placement, number, i) for i, x in enumerate(tensors))

    def _activation(
        self, tensor: Tensor, placement: Placement, number: int, position: int
    ) -> Tensor:
        scale, zero, low, high = self.grids[placement.key]
        if (low, high) != (LOW, HIGH):  # XNNPACK ignores the bounds of the operator
            tensor = hardtanh(tensor, (low - zero) * scale, (high - zero) * scale)
        call = self.calls[number, position]
        self.calls[number, position] += 1
        self.keys.append((number, position, call))
        parameters = (scale, zero, LOW, HIGH, torch.int8)
        found: Tensor = DEQUANTIZE(QUANTIZE(tensor, *parameters), *parameters)
        return found


def _grid_of(placement: Placement) -> tuple[float, int, int, int]:
    """Return scale, zero point and the lowest and highest integer of an activation, in int8."""
    if placement.qparams is None:
        raise ExportError(f"{placement.name}: it has no integer grid.")
    grid = placement.qparams.grid
    if grid.is_dynamic:
        raise ExportError(
            f"{placement.name}: its scale is computed in each call (observer 'dynamic'), which Lilliput does "
            "not support for ExecuTorch; calibrate it, or export ONNX."
        )
    if grid.axis is not None or grid.bits > 8:
        what = "a scale per channel" if grid.axis is not None else f"{grid.bits} bits"
        raise ExportError(
            f"{placement.name}: XNNPACK does not support activations with {what}; use 8 bits and one scale "
            "per tensor."
        )
    shift = 0 if grid.is_signed else 128
    zero = int(to_array(placement.qparams.zero_point)) - shift
    return float(to_array(placement.qparams.scale)), zero, grid.low - shift, grid.high - shift


def _weight(placement: Placement) -> Tensor | Integers:
    """Return a weight as int8 with one scale per channel, or in float if that is impossible."""
    plain = torch.from_numpy(np.array(placement.weight()))
    if placement.qparams is None:
        return plain
    found = on_grid(placement)
    grid = placement.qparams.grid
    shift = 0 if grid.is_signed else 128
    if found.block_size is not None or grid.bits > 8 or (found.zero_point != shift).any():
        return torch.from_numpy(found.reals())
    return _per_channel(found, shift)


def _per_channel(found: OnGrid, shift: int) -> Integers:
    axis = found.axis or 0
    count = found.integers.shape[axis]
    scale = np.array(np.broadcast_to(found.scale.reshape(-1), (count,)), np.float32)
    integers = (found.integers - shift).astype(np.int8)
    zeros = torch.zeros(count, dtype=torch.int64)
    return torch.from_numpy(integers), torch.from_numpy(scale), zeros, axis


def _dequantized(weight: Tensor | Integers) -> Tensor:
    if isinstance(weight, Tensor):
        return weight
    found: Tensor = DEQUANTIZE_WEIGHT(*weight, LOW, HIGH, torch.int8)
    return found


def _open_batch(simulation: Simulation, max_batch: int) -> tuple[Inputs, Any]:
    """Return inputs for tracing, and the specification of their batch size for ``torch.export``."""
    rows = max((axis.size for axis in simulation.axes), default=0)
    # Below 16 rows torch checks whether to use NNPACK, and then allows no more than 15.
    traced = max(rows, 16)
    batch = torch.export.Dim(BATCH, min=1, max=max(max_batch, traced))
    axes = [replace(axis, hint=batch) for axis in simulation.axes]
    inputs = resized(simulation.inputs, axes, {BATCH: traced})
    return inputs, open_shapes(simulation.model, inputs, axes)
