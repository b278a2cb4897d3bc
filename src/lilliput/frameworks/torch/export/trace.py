"""Trace a torch model as ONNX, with a ``Mark`` node wherever it is quantized."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.config.layer import QuantType
from lilliput.errors import LilliputError
from lilliput.frameworks.exporting.simulation import (
    Simulation,
    as_simulated,
    first_line,
    key_of,
)
from lilliput.frameworks.exporting.sizes import BATCH, Axis, OpenSizes, TraceError
from lilliput.frameworks.torch.export.assumed import open_sizes
from lilliput.frameworks.torch.export.decompose import only_where_needed
from lilliput.frameworks.torch.export.marks import mark_operator, write_mark
from lilliput.frameworks.torch.export.registry import reading_once
from lilliput.frameworks.torch.export.simulation import evaluating
from lilliput.frameworks.torch.export.sizes import in_order, open_shapes, resized
from lilliput.frameworks.torch.instrument import quantizers_in
from lilliput.frameworks.torch.onnx_cells import translations, whole_layers
from lilliput.frameworks.wrapping import marking


def trace(
    simulation: Simulation, opset: int, prepare: Callable[[Any], None]
) -> tuple[Any, OpenSizes, dict[str, str]]:
    """Return the model as an ``onnx_ir.Model`` with ``Mark`` nodes.

    Also return the dynamic sizes among the axes of the simulation, and their names, by the names in the
    trace. ``prepare(graph)`` is called before torch optimizes the graph.
    """
    axes, operator = simulation.axes, mark_operator()
    numbers = {placement.key: i for i, placement in enumerate(simulation.placements)}

    def mark(
        wrapper: Any, quant_type: QuantType, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        number = numbers[key_of(wrapper, quant_type)]
        placement = simulation.placements[number]
        is_own = placement.qparams is None or placement.qparams.is_result
        if not placement.is_weight and is_own:
            tensors = as_simulated(wrapper, quant_type, tensors)
        if not placement.is_weight and placement.qparams is None:
            return tensors
        return tuple(operator(x, number, i) for i, x in enumerate(tensors))

    # torch treats a size of one as a constant.
    twice = {axis.name: 2 for axis in axes if axis.size == 1}
    args, kwargs = inputs = resized(simulation.inputs, axes, twice)
    marked = marking(mark, quantizers_in(simulation.model))
    quickly = (whole_layers(), reading_once(), only_where_needed())
    with ExitStack() as stack:
        for context in (evaluating(simulation.model), marked, *quickly):
            stack.enter_context(context)
        try:
            program: Any = torch.onnx.export(
                simulation.model,
                args,
                kwargs=kwargs,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                dynamic_shapes=open_shapes(simulation.model, inputs, axes),
                optimize=False,
                custom_translation_table={**translations(), operator: write_mark},
            )
            prepare(program.model.graph)
            program.optimize()
        except LilliputError:
            raise
        except Exception as error:
            raise TraceError(_explain(simulation.model, error, axes)) from error
    values = in_order(program.exported_program, inputs)
    sizes = open_sizes(program.exported_program, list(values.values()), axes)
    names = {}
    for axis in sizes.axes:
        for i, dim in axis.places:
            names[str([*values.values()][i].shape[dim])] = axis.name
    return program.model, sizes, names


def _explain(model: nn.Module, error: BaseException, axes: Sequence[Axis]) -> str:
    """Return why torch could not trace a model, from the innermost reason it gives."""
    reasons: list[BaseException] = []
    reason: BaseException | None = error
    while reason is not None and reason not in reasons:
        reasons.append(reason)
        reason = reason.__cause__
    text = f"torch cannot write {type(model).__name__} as ONNX: "
    for reason in reversed(reasons):
        found = re.search(r"No ONNX function found for .*?op='?([\w.]+)", str(reason))
        if found is not None:
            return f"{text}{found[1]} has no ONNX form; replace it in the model."
    if "DynamicCache" in str(reasons[-1]):
        return f"{text}it returns a key/value cache, which is not a tensor; call it with use_cache=False."
    text += f"{type(reasons[-1]).__name__}: {first_line(reasons[-1])}"
    if text.endswith(":"):
        text += f" {first_line(reasons[-1], skip=1)}"
    asked = [axis.name for axis in axes if axis.is_asked]
    is_about_sizes = "dynamic" in str(reasons[-1]).lower()
    if asked == [BATCH] and is_about_sizes:
        text += " If the model needs this batch size, pass dynamic_batch=False."
    elif asked and is_about_sizes:
        text += f" If it cannot be dynamic in {' or '.join(asked)}, remove it from dynamic_shapes."
    return text
