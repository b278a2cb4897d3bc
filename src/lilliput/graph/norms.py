"""Modules with statistics over channels: their inputs, outputs and dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from lilliput.graph.analysis import Analysis
from lilliput.graph.ir import Op, Tensor, flatten
from lilliput.graph.labels import Indices
from lilliput.graph.walk import Statistic, Value


@dataclass(frozen=True, eq=False)
class Norm:
    """A module with one input and one output that can run on kept channels alone.

    Parameters
    ----------
    path : str
        Path of the module.
    source, result : Value
        Its input and its output.
    columns : tuple of array
        The labels over which it computes statistics.
    """

    path: str
    source: Value
    result: Value
    columns: tuple[Indices, ...]


def find_norms(analysis: Analysis) -> list[Norm]:
    """Return all such modules of a graph, one entry per call."""
    found = (find_norm(analysis, statistic) for statistic in analysis.walk.statistics)
    return [norm for norm in found if norm is not None]


def find_norm(analysis: Analysis, statistic: Statistic) -> Norm | None:
    """Return the module that computes a statistic, or None if it is not a simple one."""
    if not statistic.op.scopes:
        return None
    key, path = statistic.op.scopes[-1]
    if path not in analysis.graph.simple or not path:
        return None
    inside = analysis.graph.calls[key]
    members = set(inside)
    sources = {x for op in inside for x in op.tensors if _comes_in(x, members)}
    results = {
        x
        for op in inside
        for x in flatten([op.results])
        if isinstance(x, Tensor) and _goes_out(x, members) and not _is_source(op, members)
    }
    if len(sources) != 1 or len(results) != 1:
        return None
    given, made = (analysis.walk.value(next(iter(x))) for x in (sources, results))
    return Norm(path, given, made, statistic.columns)


def _comes_in(tensor: Tensor, members: set[Op]) -> bool:
    return tensor.is_input or (tensor.maker is not None and tensor.maker not in members)


def _goes_out(tensor: Tensor, members: set[Op]) -> bool:
    return tensor.is_output or any(user not in members for user in tensor.users)


def _is_source(op: Op, members: set[Op]) -> bool:
    """Whether an op returns the module's input unchanged, such as a cast to the same type."""
    if op.name != "identity" or not isinstance(op.results, Tensor):
        return False
    source = op.arguments["input"]
    if source.dtype != op.results.dtype:
        return False
    return source.maker not in members or _is_source(source.maker, members)
