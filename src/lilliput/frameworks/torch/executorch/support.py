"""Which layers use operators that ExecuTorch cannot lower, or that its runtime has no kernel for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from lilliput.frameworks.torch.executorch.passes import name_of


def without_kernel(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Return the nodes of a finished program whose operator the runtime does not have."""
    from executorch.runtime import Runtime

    known = Runtime.get().operator_registry.operator_names
    operators = _operators(nodes)
    return [x for x, operator in operators if operator.name() not in known]  # type: ignore[no-untyped-call]


def outside_core(exported: Any) -> list[fx.Node]:
    """Return the nodes of an exported program that are not core operators of PyTorch once decomposed."""
    try:
        nodes = exported.run_decompositions().graph.nodes
    except Exception:  # that may be why the program cannot be lowered
        nodes = exported.graph.nodes
    return [x for x, operator in _operators(nodes) if torch.Tag.core not in operator.tags]


def list_operators(nodes: Iterable[fx.Node]) -> str:
    """Return operators with the layers that use them, for messages."""
    layers: dict[str, dict[str, None]] = {}
    for node in nodes:
        layers.setdefault(str(node.target), {})[repr(name_of(node))] = None
    return "; ".join(f"{operator} in {', '.join(found)}" for operator, found in layers.items())


def _operators(nodes: Iterable[fx.Node]) -> Iterator[tuple[fx.Node, torch._ops.OpOverload]]:
    """Iterate over the nodes that call an operator."""
    for node in nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            yield node, node.target
