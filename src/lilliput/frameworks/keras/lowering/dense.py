"""Layers that multiply by a matrix: Dense, EinsumDense, Embedding, and attention made of them."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks.keras.lowering.elementwise import activate
from lilliput.frameworks.keras.lowering.table import UnknownError, Writer, lowering
from lilliput.graph.ir import Shape, Tensor


@lowering("Dense")
def dense(writer: Writer) -> Any:
    """Contract the last dimension; columns of the kernel are the new channels."""
    weight, bias = writer.permute(writer.kernel(), (1, 0)), writer.parameter("bias")
    x = writer.input()
    made = writer.op("linear", writer.shape(), input=x, weight=weight, bias=bias)
    return activate(writer, made, writer.layer.activation)


@lowering("EinsumDense")
def einsum_dense(writer: Writer) -> Any:
    """Multiply along the letters of an equation."""
    made = project(writer, writer.layer, writer.input(), writer.shape())
    return activate(writer, made, writer.layer.activation)


def project(writer: Writer, layer: Any, x: Tensor, shape: Shape) -> Tensor:
    """Return the output of an EinsumDense before its activation."""
    kernel, bias = writer.kernel("kernel", layer), writer.parameter("bias", layer)
    equation = _spelled_out(layer.equation, len(x.shape))
    made: Tensor = writer.op("einsum", shape, equation=equation, tensors=[x, kernel])
    if bias is not None:
        made = writer.op("add", shape, is_pointwise=True, input=made, other=bias)
    return made


def _spelled_out(equation: str, rank: int) -> str:
    """Return an equation with letters instead of dots.

    >>> _spelled_out("...x,xy->...y", 3)
    'ABx,xy->ABy'
    """
    given = equation.partition(",")[0].replace("...", "")
    letters = "ABCDEFGH"[: rank - len(given)]
    return equation.replace("...", letters)


@lowering("Embedding")
def embedding(writer: Writer) -> Any:
    """Look up rows of a table; its columns are the new channels."""
    return writer.op(
        "embedding", writer.shape(), weight=writer.kernel("embeddings"), indices=writer.input()
    )


@lowering("MultiHeadAttention")
def attention(writer: Writer) -> Any:
    """Project to heads, compare queries with keys, mix values, and project back."""
    layer = writer.layer
    query, value = writer.argument(0, "query"), writer.argument(1, "value")
    key = writer.argument(2, "key") or value
    if query is None or value is None or key is None or len(query.shape) != 3:
        raise UnknownError("it is called in an unknown way")
    if len(value.shape) != 3 or len(writer.node.outputs) != 1 or layer._attention_axes != (1,):
        raise UnknownError("it attends along several dimensions, or returns its scores")
    heads = _heads(writer, layer._query_dense, query, layer._key_dim)
    keys = _heads(writer, layer._key_dense, key, layer._key_dim)
    values = _heads(writer, layer._value_dense, value, layer._value_dim)
    shape = (*heads.shape[:3], layer._value_dim)
    # Masks select positions, which are not cut.
    mixed = writer.op("attention", shape, query=heads, key=keys, value=values, attn_mask=None)
    mixed = writer.permute(mixed, (0, 2, 1, 3))
    if getattr(layer, "_use_gate", False):
        gate = project(writer, layer._gate_dense, query, mixed.shape)
        gate = writer.op("sigmoid", mixed.shape, is_pointwise=True, input=gate)
        mixed = writer.op("mul", mixed.shape, is_pointwise=True, input=mixed, other=gate)
    return project(writer, layer._output_dense, mixed, writer.shape())


def _heads(writer: Writer, layer: Any, x: Tensor, size: int) -> Tensor:
    """Return the projection to heads, (batch, heads, length, size): whole heads are removed."""
    shape = (*x.shape[:2], writer.layer._num_heads, size)
    made = project(writer, layer, x, shape)
    why = "they are inside heads, and whole heads are removed instead"
    made = writer.op("stays", shape, input=made, dims=[3], because=why)
    return writer.permute(made, (0, 2, 1, 3))
