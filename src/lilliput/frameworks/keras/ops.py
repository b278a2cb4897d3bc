"""The tensor functions of :mod:`lilliput.ops.namespace`, for Keras on TensorFlow and JAX.

Keras tensors on torch are torch tensors, and use the functions of torch.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.fakequant import fake_quantize as fake_quantize
from lilliput.frameworks.keras.fakequant import learned_fake_quantize as learned_fake_quantize
from lilliput.frameworks.keras.fakequant import offset_to_zero_point as offset_to_zero_point
from lilliput.frameworks.keras.fakequant import round_to_grid as round_to_grid
from lilliput.frameworks.keras.grad import map_gradient as map_gradient
from lilliput.frameworks.keras.grad import straight_through as straight_through
from lilliput.frameworks.keras.scopes import mean_over_replicas, replicas
from lilliput.frameworks.keras.variables import tensor_of, to_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensor = Any


def _on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert variables among the arguments to tensors, which some Keras functions require."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*(tensor_of(x) if _is_variable(x) else x for x in args), **kwargs)

    return call


def _is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable)


abs = _on_tensors(ops.abs)
any = _on_tensors(ops.any)
clip = _on_tensors(ops.clip)
exp = _on_tensors(ops.exp)
isfinite = _on_tensors(ops.isfinite)
isnan = _on_tensors(ops.isnan)
log = _on_tensors(ops.log)
max = _on_tensors(ops.max)
maximum = _on_tensors(ops.maximum)
mean = _on_tensors(ops.mean)
moveaxis = _on_tensors(ops.moveaxis)
ones_like = _on_tensors(ops.ones_like)
relu = _on_tensors(ops.relu)
relu6 = _on_tensors(ops.relu6)
reshape = _on_tensors(ops.reshape)
round = _on_tensors(ops.round)
sign = _on_tensors(ops.sign)
sqrt = _on_tensors(ops.sqrt)
tanh = _on_tensors(ops.tanh)
where = _on_tensors(ops.where)
zeros_like = _on_tensors(ops.zeros_like)


def detach(tensor: Tensor) -> Tensor:
    """Return the value without its gradient."""
    return ops.stop_gradient(tensor_of(tensor))


def flatten(tensor: Tensor) -> Tensor:
    """Return all entries on one axis."""
    return ops.reshape(tensor, (-1,))


def gelu(tensor: Tensor) -> Tensor:
    """Return the exact GELU."""
    return ops.gelu(tensor, approximate=False)


def size(tensor: Tensor) -> int:
    """Return the number of entries; axes of unknown length, in a graph, count as one."""
    return math.prod(1 if n is None else int(n) for n in tensor.shape)


def shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape."""
    return tuple(tensor.shape)


def concat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate flat tensors."""
    return ops.concatenate(list(tensors))


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors of one shape along a new axis."""
    return ops.stack(list(tensors), axis=axis)


def nearest_of(tensor: Tensor, values: Tensor) -> Tensor:
    """Return the nearest of a few values for each entry.

    The gradient of a value is the sum over its entries; that of an entry passes straight through.
    """
    entries, held = ops.convert_to_tensor(tensor), ops.sort(ops.convert_to_tensor(values))
    middles = ops.stop_gradient(held[1:] + held[:-1]) / 2
    places = ops.searchsorted(middles, ops.reshape(ops.stop_gradient(entries), (-1,)))
    found = ops.reshape(ops.take(held, places), ops.shape(entries))
    return found + (entries - ops.stop_gradient(entries))


def repeat(tensor: Tensor, count: int, axis: int) -> Tensor:
    """Repeat each entry along an axis, copies side by side."""
    return ops.repeat(tensor, count, axis=axis)


def sample_size(tensor: Tensor) -> Any:
    """Return the number of entries per entry of the first axis; a tensor if unknown in a graph."""
    sizes = ops.shape(tensor)[1:]
    if builtins.all(isinstance(n, int) for n in sizes):
        return math.prod(sizes)
    return math.prod(ops.cast(n, "float32") for n in sizes)


def cond(flag: Tensor, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return the result of one of two functions, which return lists of equal structure; only one is computed.

    Devices that communicate must run the same functions: with several devices, both are computed.
    """
    if replicas() == 1:
        return ops.cond(flag, yes, no)
    return [ops.where(flag, x, y) for x, y in zip(yes(), no(), strict=True)]


def is_certain(flag: Tensor) -> bool:
    """Whether a flag is true; assumed while a graph is traced, where it has no value yet."""
    try:
        return bool(flag)
    except TypeError:
        return True


def assign(target: keras.Variable, value: Tensor) -> None:
    """Overwrite a variable with a copy of a value.

    Keras on JAX would store the tensor itself, whose memory a training step then donates.
    """
    is_shared = keras.backend.backend() == "jax"
    target.assign(ops.copy(tensor_of(value)) if is_shared else value)


def take_first(tensor: Tensor, count: int, axis: int) -> Tensor:
    """Return the first ``count`` entries along an axis."""
    return tensor[tuple(slice(count) if i == axis else slice(None) for i in _axes(tensor))]


def range_of(tensor: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value, of the tensor or of each slice along an axis.

    With several devices, those of a whole tensor are means over the devices.
    """
    others = None
    if axis is not None:
        others = tuple(i for i in _axes(tensor) if i != axis % len(tensor.shape))
        if not others:
            return tensor, tensor
    found = ops.min(tensor, axis=others), ops.max(tensor, axis=others)
    return (mean_over_replicas(found[0]), mean_over_replicas(found[1])) if axis is None else found


def mean_abs(tensor: Tensor) -> Tensor:
    """Return the mean magnitude; with several devices, the mean over the devices."""
    return mean_over_replicas(ops.mean(ops.abs(tensor)))


def min_over(tensor: Tensor, axis: int) -> Tensor:
    """Return the smallest entries along an axis, which is dropped."""
    return ops.min(tensor, axis=axis)


def mean_over(tensor: Tensor, axis: int) -> Tensor:
    """Return the mean along an axis, which is dropped."""
    return ops.mean(tensor, axis=axis)


def max_over(tensor: Tensor, axis: int) -> Tensor:
    """Return the largest entries along an axis, which is dropped."""
    return ops.max(tensor, axis=axis)


def histogram(
    tensor: Tensor, bins: int, low: float, high: float, every: int = 1
) -> NDArray[np.float64]:
    """Return how many of every n-th entry fall into each of equal bins from ``low`` to ``high``."""
    # Computed in float64: in float32 the edges of the bins may coincide.
    values = to_numpy(tensor).reshape(-1)[::every]
    return np.histogram(values, bins, (low, high))[0].astype(np.float64)


def log_softmax(tensor: Tensor, axis: int) -> Tensor:
    """Return the logarithms of the softmax along an axis."""
    return ops.log_softmax(tensor, axis=axis)


def pad_last(tensor: Tensor, count: int, axis: int) -> Tensor:
    """Append ``count`` copies of the last entry along an axis."""
    if count == 0:
        return tensor
    last = ops.take(tensor, [tensor.shape[axis] - 1], axis=axis)
    return ops.concatenate([tensor, ops.repeat(last, count, axis=axis)], axis=axis)


def positive(scale: Tensor) -> Tensor:
    """Return scales with zeros replaced by the smallest one whose reciprocal is finite."""
    return ops.maximum(scale, float(np.finfo(np.float32).tiny))


def sum(tensor: Tensor, axis: int | tuple[int, ...]) -> Tensor:
    """Sum over axes, which are dropped."""
    return ops.sum(tensor, axis=axis)


def count_nonzero(tensor: Tensor) -> int:
    """Return the number of nonzero entries, as a Python integer."""
    return int(np.count_nonzero(ops.convert_to_numpy(tensor)))


def first_true(flags: Tensor, count: int) -> Tensor:
    """Return flat flags with only the first ``count`` true ones set."""
    array = ops.convert_to_numpy(flags)
    kept = np.zeros_like(array)
    kept[np.flatnonzero(array)[:count]] = True
    return ops.convert_to_tensor(kept)


def pairwise_distances(rows: Tensor) -> Tensor:
    """Return the Euclidean distances between all rows."""
    wide = to_numpy(rows)
    distances = np.stack([np.sqrt(np.square(wide - row).sum(axis=1)) for row in wide])
    return ops.convert_to_tensor(distances.astype(np.float32))


def products(rows: Tensor) -> Tensor:
    """Return the inner products of all rows."""
    return ops.matmul(rows, ops.transpose(rows))


def to_numpy(tensor: Tensor) -> NDArray[np.float64]:
    """Return a copy as a NumPy array of float64."""
    array: NDArray[np.float64] = to_array(tensor).astype(np.float64)
    return array


def from_numpy(array: NDArray[Any], like: Tensor) -> Tensor:
    """Return an array as a tensor with the dtype of another one."""
    return ops.convert_to_tensor(array, dtype=keras.backend.standardize_dtype(like.dtype))


def to_float(tensor: Tensor, like: Tensor) -> Tensor:
    """Cast to the dtype of another tensor."""
    return ops.cast(tensor, keras.backend.standardize_dtype(like.dtype))


def uniform_like(tensor: Tensor) -> Tensor:
    """Raise: random numbers inside a graph need state that belongs to the model."""
    raise UnsupportedModelError(
        "this algorithm draws random numbers in each step, which is supported on torch models only."
    )


def widen(tensor: Tensor) -> Tensor:
    """Cast half precision to float32; return other types unchanged."""
    is_half = keras.backend.standardize_dtype(tensor.dtype) in ("float16", "bfloat16")
    return ops.cast(tensor, "float32") if is_half else tensor_of(tensor)


def kth_smallest(flat: Tensor, k: int) -> Tensor:
    """Return the k-th smallest value (k from 1) of a flat tensor, exactly."""
    array = np.asarray(ops.convert_to_numpy(widen(flat)))
    return to_float(ops.convert_to_tensor(np.partition(array, k - 1)[k - 1]), like=flat)


def _axes(tensor: Tensor) -> range:
    return builtins.range(len(tensor.shape))
