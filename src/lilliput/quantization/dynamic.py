"""Inputs whose range is found in each call, from the tensor itself: ``observer: "dynamic"``.

Rounding is that of ONNX's ``DynamicQuantizeLinear``: uint8, from the smallest to the largest entry of the
whole tensor, zero included. Nothing is calibrated, and no input lies outside of the grid. What a model makes
of one example then depends a little on the others of its batch, since they share a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.errors import Problem
from lilliput.ops.qparams import Grid
from lilliput.quantization.grids import grid_for

_GRID = Grid(8, is_signed=False, is_symmetric=False, is_dynamic=True)


def dynamic_problems(
    selection: Selection, targets_of: Callable[[LayerInfo], list[str]], types: frozenset[str]
) -> list[Problem]:
    """Return where rules ask for dynamic ranges that no runtime has kernels for.

    Parameters
    ----------
    selection : Selection
        What the rules take.
    targets_of : callable
        Returns which tensors of a layer are quantized.
    types : frozenset of str
        The types of layers whose inputs may be dynamic.
    """
    problems = []
    for decision in selection.decisions:
        if decision.rule is None or decision.excluded:
            continue
        for target in targets_of(decision.layer):
            fault = _fault(decision.layer, decision.layer.config, target, types)
            if fault:
                problems.append(Problem(f"rule {decision.rule} → observer", fault))
    return list(dict.fromkeys(problems))


def _fault(layer: LayerInfo, config: Mapping[str, Any], target: str, types: frozenset[str]) -> str:
    grid = grid_for(config, target, layer)
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
