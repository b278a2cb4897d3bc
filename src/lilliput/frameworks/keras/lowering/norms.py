"""Norm layers."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks.keras.lowering.table import UnknownError, Writer, lowering

_STATISTICS = ("moving_stddev", "renorm_mean", "renorm_stddev")


@lowering("BatchNormalization")
def batch_norm(writer: Writer) -> Any:
    """Normalize each channel separately."""
    at = writer.layer.axis
    x = writer.move(writer.input(), at, 1)
    mean = writer.parameter("moving_mean")
    made = writer.op(
        "batch_norm",
        x.shape,
        input=x,
        weight=writer.parameter("gamma"),
        bias=writer.parameter("beta"),
        running_mean=mean,
        running_var=writer.parameter("moving_variance"),
    )
    others = [writer.parameter(name) for name in _STATISTICS]
    known = [x for x in (mean, *others) if x is not None]
    if len(known) > 1:
        writer.same(*known)
    return writer.move(made, 1, at)


@lowering("LayerNormalization", "RMSNormalization")
def layer_norm(writer: Writer) -> Any:
    """Normalize over some dimensions together."""
    dims = _dims(writer)
    count = len(writer.input().shape)
    order = [*(d for d in range(count) if d not in dims), *dims]
    x = writer.permute(writer.input(), order)
    is_layer = type(writer.layer).__name__ == "LayerNormalization"
    made = writer.op(
        "layer_norm",
        x.shape,
        input=x,
        normalized_shape=list(x.shape[-len(dims) :]),
        weight=writer.parameter("gamma" if is_layer else "scale"),
        bias=writer.parameter("beta") if is_layer else None,
    )
    return writer.permute(made, [order.index(d) for d in range(count)])


@lowering("GroupNormalization")
def group_norm(writer: Writer) -> Any:
    """Normalize over each group of channels, and all positions."""
    layer = writer.layer
    x = writer.move(writer.input(), layer.axis, 1)
    groups = x.shape[1] if layer.groups == -1 else layer.groups
    weight, bias = writer.parameter("gamma"), writer.parameter("beta")
    made = writer.op("group_norm", x.shape, input=x, num_groups=groups, weight=weight, bias=bias)
    return writer.move(made, 1, layer.axis)


@lowering("UnitNormalization")
def unit_norm(writer: Writer) -> Any:
    """Divide vectors by their length, which zeros do not change."""
    x, dims = writer.input(), _dims(writer)
    lengths = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    length = writer.op("linalg_vector_norm", lengths, input=x, dim=dims, keepdim=True)
    return writer.op("div", x.shape, is_pointwise=True, input=x, other=length)


def _dims(writer: Writer) -> list[int]:
    axis, count = writer.layer.axis, len(writer.input().shape)
    dims = sorted(d % count for d in ([axis] if isinstance(axis, int) else axis))
    if 0 in dims:
        raise UnknownError("it normalizes over the batch")
    return dims
