"""Convolutions whose weights are standardized in each run (BiT, NFNet): which parameter is behind them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from lilliput.speedup.walk import Walk, op_name, place

_STATISTICS = (
    "batch_norm",
    "instance_norm",
    "layer_norm",
    "mean",
    "var",
    "std",
    "var_mean",
    "std_mean",
)
STANDARDIZED = (
    "the filters that read them are standardized over their inputs, and fewer inputs would change every "
    "filter: put the standardized weights into plain convolutions before pruning"
)


def explain_standardized(walk: Walk, weight: object) -> None:
    """Say why inputs of a convolution stay whose weights are standardized over them."""
    found = [node for node in _made_of(weight) if op_name(node) in _STATISTICS]
    if found:
        walk.axes.reason = f"{STANDARDIZED} ({op_name(found[0])} at {place(found[0])})"


def source_of(walk: Walk, weight: object, size: int) -> str | None:
    """Return the name of the one parameter that a weight is computed from, None if it is another way."""
    found = {
        walk.names.get(str(node.target))
        for node in _made_of(weight)
        if node.op == "get_attr"
        and len(shape := tuple(walk.tensors[str(node.target)].shape)) > 1
        and shape[0] == size
        and max(shape[1:]) > 1
    }
    return found.pop() if len(found) == 1 else None


def is_of_weights(node: object) -> bool:
    """Whether a value is computed from parameters alone."""
    return bool(_made_of(node))


def _made_of(weight: object) -> list[fx.Node]:
    """Return everything that a value is computed from, nothing if the model's inputs are among it."""
    found = list(_ancestors(weight)) if isinstance(weight, fx.Node) else []
    return [] if any(node.op == "placeholder" for node in found) else found


def _ancestors(node: fx.Node) -> Iterator[fx.Node]:
    """Yield a node and all before it; stop at the first input of the model."""
    waiting, seen = [node], {node}
    while waiting:
        node = waiting.pop()
        yield node
        if node.op == "placeholder":
            return
        new = [x for x in node.all_input_nodes if x not in seen]
        seen.update(new)
        waiting += new
