"""Decompose the operators of a trace that ONNX does not have, and only those.

torch's exporter traces the whole program a second time for this, which costs as much as the first trace.
Most operators have an ONNX form, so it is enough to trace each of the others separately and to replace it by
its parts. If that is not safe (operators that write to their inputs, branches and loops, parts
without an ONNX form), torch's own method is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from operator import getitem
from threading import RLock
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

_HOME = "torch.onnx._internal.exporter._fx_passes"
_TABLES = "torch.onnx._internal.exporter._decomp"
_KEPT = ("nn_module_stack", "stack_trace", "source_fn_stack")  # the origin of a node
_CHECKS = (
    *("_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
    "sym_constrain_range_for_size",
)
_SUPPRESS = "suppress_guards"  # of the environment of dynamic sizes
_one_export = RLock()
Table = Mapping[Any, Callable[..., Any]]


@contextmanager
def only_where_needed() -> Iterator[None]:
    """Let exports inside decompose single operators instead of tracing the program again."""
    with _one_export:  # first: another export may have patched it
        try:
            home: Any = import_module(_HOME)
            tables: Any = import_module(_TABLES)
            whole, promote = home.decompose_with_registry, home.insert_type_promotion_nodes
            find_known = tables.get_onnx_implemented_overloads
            find_table = tables.create_onnx_friendly_decomposition_table
        except (ImportError, AttributeError):  # another version of torch: it traces twice
            yield
            return

        def decompose(program: Any, registry: Any) -> Any:
            known = set(find_known(registry))
            if take_apart(program, known, find_table(known)):
                return program
            return whole(program, registry)

        def promote_types(module: Any) -> None:
            with _assuming_nothing(module.graph):
                promote(module)

        home.decompose_with_registry = decompose
        home.insert_type_promotion_nodes = promote_types
        try:
            yield
        finally:
            home.decompose_with_registry = whole
            home.insert_type_promotion_nodes = promote


@contextmanager
def _assuming_nothing(graph: fx.Graph) -> Iterator[None]:
    """Let torch run a trace on dynamic sizes without recording guards from its choice of kernels.

    To find the types of results it chooses a kernel for each convolution, for example one for fewer than 16
    images. The trace is nevertheless valid for more.
    """
    sizes = (x for node in graph.nodes for x in getattr(_value(node), "shape", ()))
    open_size = next((x for x in sizes if isinstance(x, torch.SymInt)), None)
    suppress = getattr(
        getattr(getattr(open_size, "node", None), "shape_env", None), _SUPPRESS, None
    )
    if suppress is None:
        yield
        return
    with suppress():
        yield


def take_apart(program: Any, known: set[Any], table: Table) -> bool:
    """Replace the operators of an exported program that are not known by their parts.

    Parameters
    ----------
    program : ExportedProgram
        The program to change; unchanged if this is not possible.
    known : set
        The operators that need not be decomposed.
    table : mapping
        The decompositions of the others.

    Returns
    -------
    bool
        Whether only known operators are left.
    """
    graph = program.graph_module.graph
    nodes = [x for x in graph.nodes if x.op == "call_function"]
    if len([*program.graph_module.modules()]) > 1 or any(map(_writes, nodes)):
        return False
    outputs = {x.arg.name for x in program.graph_signature.output_specs}
    due = [x for x in nodes if _is_operator(x) and not _is_check(x) and _is_due(x, known)]
    if any(x.name in outputs for node in due for x in (node, *_pieces(node))):
        return False  # the signature uses names
    parts: list[tuple[fx.Node, fx.Graph | None]] = []
    for node in due:
        is_needless = _changes_nothing(node)
        found = None if is_needless else _parts(node, table)
        if found is None and not is_needless:
            return False
        if found is not None and not all(_is_fine(x, known) for x in found.nodes):
            return False
        parts.append((node, found))
    for node, found in parts:
        _put_in(graph, node, found)
    _share_sizes(graph)
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()
    return True


def _is_due(node: fx.Node, known: set[Any]) -> bool:
    """Whether to decompose an operator; torch always decomposes composite views, even known ones."""
    return node.target not in known or _is_compound_view(node.target)


def _pieces(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that select one of several results of an operator."""
    return [x for x in node.users if x.target is getitem]


def _is_operator(node: fx.Node) -> bool:
    """Whether a node calls an operator; others compute with sizes."""
    return isinstance(node.target, torch._ops.OpOverload)


@cache
def _is_compound_view(operator: Any) -> bool:
    """Whether an operator is a view composed of other operators."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    is_compound = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)
    return is_compound and any(x.alias_info is not None for x in operator._schema.returns)


def _is_check(node: fx.Node) -> bool:
    """Whether a node only asserts something; the exporter drops these."""
    return getattr(node.target, "_opname", "") in _CHECKS


def _is_fine(node: fx.Node, known: set[Any]) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    return not _writes(node) and (not _is_operator(node) or node.target in known)


def _writes(node: fx.Node) -> bool:
    """Whether an operator changes one of its arguments, or is a branch or a loop."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _changes_nothing(node: fx.Node) -> bool:
    """Whether a conversion of a tensor has no effect."""
    before, after = _value(node.args[0]) if node.args else None, node.meta.get("val")
    if getattr(node.target, "_opname", "") != "to" or not isinstance(before, Tensor):
        return False
    if not isinstance(after, Tensor) or node.kwargs.get("memory_format") is not None:
        return False
    return (before.dtype, before.device, before.layout) == (after.dtype, after.device, after.layout)


def _parts(node: fx.Node, table: Table) -> fx.Graph | None:
    """Return the decomposition of an operator as a graph of its inputs, or None if unknown."""
    inputs = node.all_input_nodes
    values = [_value(x) for x in inputs]
    modes = {id(m): m for x in values if (m := getattr(x, "fake_mode", None)) is not None}
    if len(modes) != 1 or any(x is None for x in values):
        return None

    def call(*given: Any) -> Any:
        held = dict(zip(inputs, given, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), held.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    (mode,) = modes.values()
    try:
        with mode, torch.no_grad():
            traced: fx.Graph = make_fx(call, decomposition_table=dict(table))(*values).graph
    except Exception:  # not traceable separately: torch's own method handles it
        return None
    return traced


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _put_in(graph: fx.Graph, node: fx.Node, parts: fx.Graph | None) -> None:
    """Replace an operator by its parts; None means that it has no effect."""
    if parts is None:
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.erase_node(node)
        return
    places = [x for x in parts.nodes if x.op == "placeholder"]
    held: dict[fx.Node, fx.Node] = dict(zip(places, node.all_input_nodes, strict=True))
    with graph.inserting_before(node):
        for part in parts.nodes:
            if part.op == "call_function":
                held[part] = graph.node_copy(part, held.__getitem__)
                held[part].meta.update({k: node.meta[k] for k in _KEPT if k in node.meta})
    (result,) = next(x for x in parts.nodes if x.op == "output").args
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(held[result])
    else:  # several tensors: readers select one
        for reader in list(node.users):
            picked = result[reader.args[1]]
            reader.replace_all_uses_with(held[picked])
            graph.erase_node(reader)
    graph.erase_node(node)


def _share_sizes(graph: fx.Graph) -> None:
    """Compute each size once, as a second trace would."""
    found: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        value = _value(node)
        if not isinstance(value, torch.SymInt):
            continue
        first = found.setdefault(value.node.expr, node)
        if first is not node:
            node.replace_all_uses_with(first)
