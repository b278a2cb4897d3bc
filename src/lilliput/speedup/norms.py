"""Modules that take statistics over channels: what goes in, what comes out, on which dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx, nn

from lilliput.backends.torch.narrow import Narrow, keep_of
from lilliput.speedup.analysis import Analysis
from lilliput.speedup.attributes import find_attributes, set_attributes
from lilliput.speedup.capture import plain_copy
from lilliput.speedup.cuts import Cut, apply_cuts, find_cuts
from lilliput.speedup.labels import Flags, Indices
from lilliput.speedup.leaf import fix_leaf
from lilliput.speedup.rewrite import find_edits
from lilliput.speedup.walk import Statistic, Value, op_name


@dataclass(frozen=True, eq=False)
class Norm:
    """A module with one tensor in and one out that can be run on kept channels alone.

    Parameters
    ----------
    path : str
        Path of the module.
    source, result : Value
        What goes in and what comes out.
    columns : tuple of array
        The labels over which it takes statistics.
    """

    path: str
    source: Value
    result: Value
    columns: tuple[Indices, ...]


def find_norm(analysis: Analysis, statistic: Statistic) -> Norm | None:
    """Return the module that takes a statistic, None if it is not that simple."""
    walk = analysis.walk
    stack = statistic.node.meta.get("nn_module_stack") or {}
    if not stack:
        return None
    key, (path, _) = list(stack.items())[-1]
    if path not in analysis.captured.simple or not path:
        return None
    inside = [n for n in walk.graph.nodes if key in (n.meta.get("nn_module_stack") or {})]
    members = set(inside)
    sources, results = set(), set()
    for node in inside:
        for source in node.all_input_nodes:
            if source not in members and source.op != "get_attr":
                sources.add(source)
        leaves = any(user not in members for user in node.users)
        if node.op != "get_attr" and leaves and not _is_source(node, members):
            results.add(node)
    if len(sources) != 1 or len(results) != 1:
        return None
    source, result = (walk.values.get(next(iter(x))) for x in (sources, results))
    if not isinstance(source, Value) or not isinstance(result, Value):
        return None
    return Norm(path, source, result, statistic.columns)


def _is_source(node: fx.Node, members: set[fx.Node]) -> bool:
    """Whether a node is what went into the module, under another name: a cast that changes nothing."""
    if op_name(node) not in ("to", "type_as", "contiguous", "alias", "detach"):
        return False
    source = node.args[0]
    if not isinstance(source, fx.Node) or source.meta["val"].dtype != node.meta["val"].dtype:
        return False
    return source not in members or _is_source(source, members)


def find_norms(analysis: Analysis) -> list[Norm]:
    """Return every such module of a graph, each call of it once."""
    found = (find_norm(analysis, statistic) for statistic in analysis.walk.statistics)
    return [norm for norm in found if norm is not None]


def narrow_norms(analysis: Analysis, model: nn.Module, removed: Flags) -> dict[str, Narrow | None]:
    """Return how each norm of a masked model has to run, None for those that see all channels."""
    norms = find_norms(analysis)
    found: dict[str, Narrow | None] = dict.fromkeys((norm.path for norm in norms), None)
    cuts = find_cuts(analysis, removed)
    if not cuts:
        return found
    edits = find_edits(analysis, removed)
    attributes = find_attributes(model, edits)
    for norm in norms:
        kept = [
            [
                keep_of(d, flags)
                for d in range(len(value.shape))
                if not (flags := analysis.kept(value, d, removed)).all()
            ]
            for value in (norm.source, norm.result)
        ]
        find = analysis.walk.labels.find
        if any(removed[find(column)].any() for column in norm.columns):
            prefix = f"{norm.path}."
            own = [cut.within(prefix) for cut in cuts if cut.tensor.startswith(prefix)]
            twin = plain_copy(model.get_submodule(norm.path))
            apply_cuts(twin, own)
            for module in twin.modules():
                fix_leaf(module)
            inside = {k: v for k, v in attributes.items() if f"{k[0]}.".startswith(prefix)}
            set_attributes(
                twin,
                {(p.removeprefix(norm.path).lstrip("."), n): v for (p, n), v in inside.items()},
            )
            parameters: dict[str, list[Any]] = {}
            names = {name for name, _ in twin.named_parameters()}
            for cut in own:
                if cut.tensor in names:
                    full = analysis.axes[prefix + cut.tensor].shape[cut.dim]
                    keep = keep_of(cut.dim, _flags(cut, full))
                    parameters.setdefault(cut.tensor, []).append(keep)
            found[norm.path] = Narrow(twin, kept[0], kept[1], parameters)
    return found


def _flags(cut: Cut, size: int) -> Flags:
    flags: Flags = np.zeros(size, bool)
    flags[cut.keep] = True
    return flags
