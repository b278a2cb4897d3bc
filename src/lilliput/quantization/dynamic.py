"""Inputs whose range is computed in each call, from the tensor itself: ``observer: "dynamic"``.

Rounding is that of ONNX's ``DynamicQuantizeLinear``: uint8, from the smallest to the largest entry of the
whole tensor, zero included. Nothing is calibrated, and no input is outside the grid. The result for
one example therefore depends slightly on the other examples of its batch, since they share a scale.

Kernels multiply such inputs by integers with one scale per output. A weight of four bits or less with
scales per group is therefore rounded twice: to its groups, the form in which it is stored, and then
to seven bits with one scale per output, which the runtime computes once, when it loads the file. Seven
bits are fine enough to change little, and two products of seven and eight bits never saturate 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.errors import Problem
from lilliput.ops.fakequant import covering
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import Grid, QParams
from lilliput.quantization.grids import grid_for

_GRID = Grid(8, is_signed=False, is_symmetric=False, is_dynamic=True)
_FEW = 4  # up to this many bits, weights are widened
_WIDE = 7


def dynamic_problems(
    selection: Selection, targets_of: Callable[[LayerInfo], list[str]], types: frozenset[str]
) -> list[Problem]:
    """Return a problem for each rule that requests dynamic ranges without runtime kernels for them.

    Parameters
    ----------
    selection : Selection
        The layers selected by the rules.
    targets_of : callable
        Returns which tensors of a layer are quantized.
    types : frozenset of str
        The types of layers whose inputs may be dynamic.
    """
    problems = []
    for decision in selection.decisions:
        if decision.rule is None or decision.excluded:
            continue
        targets = targets_of(decision.layer)
        for target in targets:
            if "input" not in targets and target == "weight":
                continue
            fault = _fault(decision.layer, decision.layer.config, target, types)
            if fault:
                problems.append(Problem(f"rule {decision.rule} → observer", fault))
    return list(dict.fromkeys(problems))


def _fault(layer: LayerInfo, config: Mapping[str, Any], target: str, types: frozenset[str]) -> str:
    grid = grid_for(config, target, layer)
    if target == "weight":
        is_wide = grid.group_size is not None and grid.bits > _FEW
        if not (is_wide and grid_for(config, "input", layer).is_dynamic):
            return ""
        return (
            f"'dynamic' inputs require weights per group of {_FEW} bits or less; {layer.name!r} has "
            f"{grid.bits}: omit 'granularity'."
        )
    if not grid.is_dynamic:
        return ""
    if target == "output":
        return "'dynamic' is for inputs; give outputs another one: {'input': 'dynamic', 'output': 'mse'}."
    if not types:
        return (
            "'dynamic' needs a PTQQuantizer or QATQuantizer on a PyTorch model; choose another one."
        )
    if not layer.types & types:
        names = ", ".join(sorted(types))
        return f"'dynamic' is for inputs of {names} layers; {layer.name!r} is a {layer.type}."
    if grid != _GRID:
        return (
            f"'dynamic' is for 8 bits in quant_dtype 'uint' and quant_scheme 'affine'; the input of "
            f"{layer.name!r} has {grid.dtype}{', symmetric' if grid.is_symmetric else ''}."
        )
    return ""


def is_widened(weight: Grid, inputs: Grid) -> bool:
    """Whether a weight is rounded a second time, to the integers that kernels multiply by."""
    return inputs.is_dynamic and weight.group_size is not None


def widened(weight: Tensor, axis: int) -> QParams:
    """Return the grid, with one scale per output, to which a weight in groups is rounded."""
    return covering(weight, Grid(_WIDE, True, True, is_narrow=True, axis=axis))


def round_widened(weight: Tensor, axis: int) -> Tensor:
    """Round a weight in groups to the widened grid by division, as ``QuantizeLinear`` does.

    Examples
    --------
    >>> import torch
    >>> round_widened(torch.tensor([[0.1, 6.3]]), 0)
    tensor([[0.1000, 6.3000]])
    """
    xp = namespace(weight)
    qparams = widened(xp.detach(weight), axis)
    scale = qparams.spread(qparams.scale, weight)
    return xp.straight_through(weight, xp.round(weight / scale) * scale)
