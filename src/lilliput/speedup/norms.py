"""Modules that take statistics over channels: what goes in, what comes out, on which dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn

from lilliput.backends.torch.narrow import Keep, Narrow, keep_of
from lilliput.speedup.analysis import Analysis
from lilliput.speedup.attributes import find_attributes, set_attributes
from lilliput.speedup.capture import plain_copy
from lilliput.speedup.cuts import apply_cuts, by_tensor, find_cuts
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
    inside = walk.calls[key]
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
    given, made = (walk.values.get(next(iter(x))) for x in (sources, results))
    if not isinstance(given, Value) or not isinstance(made, Value):
        return None
    return Norm(path, given, made, statistic.columns)


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
    find = analysis.walk.labels.find
    for norm in norms:
        if not any(removed[find(column)].any() for column in norm.columns):
            continue
        prefix = f"{norm.path}."
        own = [cut.within(prefix) for cut in cuts if cut.tensor.startswith(prefix)]
        twin = plain_copy(model.get_submodule(norm.path))
        apply_cuts(twin, own)
        fix_leaf(twin)
        sizes = {("", name): x for (path, name), x in attributes.items() if path == norm.path}
        set_attributes(twin, sizes)
        parameters = {
            name: _kept_of(analysis, analysis.axes[prefix + name], removed)
            for name in by_tensor(own)
        }
        source, result = (_kept_of(analysis, x, removed) for x in (norm.source, norm.result))
        found[norm.path] = Narrow(twin, source, result, parameters)
    return found


def _kept_of(analysis: Analysis, value: Value, removed: Flags) -> list[Keep]:
    """Return what stays along each dimension that loses something."""
    flags = [analysis.kept(value, d, removed) for d in range(len(value.shape))]
    return [keep_of(d, kept) for d, kept in enumerate(flags) if not kept.all()]
