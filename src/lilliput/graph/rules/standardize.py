"""Convolutions with weights that are standardized in each run (BiT, NFNet): find the underlying parameter."""

from __future__ import annotations

from collections.abc import Iterator

from lilliput.graph.ir import Op, Tensor
from lilliput.graph.walk import Walk

_STATISTICS = ("batch_norm", "layer_norm", "mean", "var", "std", "var_mean", "std_mean")
STANDARDIZED = (
    "the filters that read them are standardized over their inputs, and fewer inputs would change every "
    "filter: put the standardized weights into plain convolutions before pruning"
)


def explain_standardized(walk: Walk, weight: Tensor) -> None:
    """Explain why the inputs of a convolution with standardized weights cannot be removed."""
    found = [x.maker for x in _made_of(weight) if x.maker is not None]
    statistics: list[Op] = [op for op in found if op.name in _STATISTICS]
    if statistics:
        walk.axes.reason = f"{STANDARDIZED} ({statistics[0]})"


def source_of(weight: Tensor, size: int) -> str | None:
    """Return the name of the only parameter that a weight is computed from, or None."""
    found = {
        None if tensor.parameter is None else tensor.parameter.name
        for tensor in _made_of(weight)
        if tensor.maker is None
        and len(tensor.shape) > 1
        and tensor.shape[0] == size
        and max(tensor.shape[1:]) > 1
    }
    return found.pop() if len(found) == 1 else None


def is_of_weights(tensor: Tensor) -> bool:
    """Whether a value is computed from parameters alone."""
    return bool(_made_of(tensor))


def _made_of(weight: Tensor) -> list[Tensor]:
    """Return everything that a value is computed from; nothing if that includes the model's inputs."""
    found = list(_ancestors(weight))
    return [] if any(tensor.is_input for tensor in found) else found


def _ancestors(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a tensor and its ancestors; stop at the first input of the model."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        tensor = waiting.pop()
        yield tensor
        if tensor.is_input:
            return
        new = [x for x in (tensor.maker.tensors if tensor.maker else ()) if x not in seen]
        seen.update(new)
        waiting += new
