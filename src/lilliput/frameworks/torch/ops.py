"""The tensor functions of :mod:`lilliput.ops.namespace`, for torch."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import abs as abs
from torch import any as any
from torch import detach as detach
from torch import exp as exp
from torch import flatten as flatten
from torch import isfinite as isfinite
from torch import isnan as isnan
from torch import log as log
from torch import max as max
from torch import maximum as maximum
from torch import mean as mean
from torch import ones_like as ones_like
from torch import relu as relu
from torch import reshape as reshape
from torch import round as round
from torch import sign as sign
from torch import sqrt as sqrt
from torch import tanh as tanh
from torch import where as where
from torch import zeros_like as zeros_like
from torch.nn.functional import gelu as gelu
from torch.nn.functional import relu6 as relu6

from lilliput.frameworks.torch.fakequant import fake_quantize as fake_quantize
from lilliput.frameworks.torch.fakequant import learned_fake_quantize as learned_fake_quantize
from lilliput.frameworks.torch.fakequant import offset_to_zero_point as offset_to_zero_point
from lilliput.frameworks.torch.fakequant import order_in_memory
from lilliput.frameworks.torch.fakequant import round_to_grid as round_to_grid
from lilliput.frameworks.torch.grad import map_gradient as map_gradient
from lilliput.frameworks.torch.grad import straight_through as straight_through

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

clip = torch.clamp
moveaxis = torch.movedim
uniform_like = torch.rand_like

# Below this size kthvalue is fast enough; above, bracketing by a sample reads the tensor a few times
# at full vector speed instead of selecting element by element.
_SAMPLED_FROM = 1 << 20
_SAMPLE_SIZE = 1 << 16
_PIECE = 1 << 17  # entries that fit into the cache


def size(tensor: Tensor) -> int:
    """Return the number of entries."""
    return tensor.numel()


def sample_size(tensor: Tensor) -> int:
    """Return the number of entries per entry of the first axis."""
    return tensor.shape[1:].numel()


def shape(tensor: Tensor) -> torch.Size:
    """Return the shape."""
    return tensor.shape


def concat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate flat tensors."""
    return torch.cat(list(tensors))


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors of one shape along a new axis."""
    return torch.stack(list(tensors), dim=axis)


def nearest_of(tensor: Tensor, values: Tensor) -> Tensor:
    """Return the nearest of a few values for each entry.

    The gradient of a value is the sum over its entries; that of an entry passes straight through.
    """
    held = values.sort().values
    middles = (held[1:] + held[:-1]).detach() / 2
    places = torch.bucketize(tensor.detach(), middles)
    return held[places] + (tensor - tensor.detach())


def repeat(tensor: Tensor, count: int, axis: int) -> Tensor:
    """Repeat each entry along an axis, copies side by side."""
    return torch.repeat_interleave(tensor, count, dim=axis)


def cond(flag: Tensor, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return the result of one of two functions; only that one is computed."""
    return yes() if flag else no()


def is_certain(flag: Tensor) -> bool:
    """Whether a flag is true; assumed while a graph is traced, where it has no value yet."""
    return torch.compiler.is_compiling() or bool(flag)


def assign(target: Tensor, value: Tensor) -> None:
    """Overwrite a tensor in place."""
    with torch.no_grad():
        target.copy_(value)


def take_first(tensor: Tensor, count: int, axis: int) -> Tensor:
    """Return the first ``count`` entries along an axis."""
    return tensor.narrow(axis, 0, count)


def range_of(tensor: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value, of the tensor or of each slice along an axis."""
    if axis is None:
        low, high = torch.aminmax(tensor.permute(order_in_memory(tensor)))
        return low, high
    others = [i for i in builtins.range(tensor.dim()) if i != axis % tensor.dim()]
    return (tensor.amin(others), tensor.amax(others)) if others else (tensor, tensor)


def mean_abs(tensor: Tensor) -> Tensor:
    """Return the mean magnitude."""
    return tensor.abs().mean()


def min_over(tensor: Tensor, axis: int) -> Tensor:
    """Return the smallest entries along an axis, which is dropped."""
    return torch.amin(tensor, dim=axis)


def mean_over(tensor: Tensor, axis: int) -> Tensor:
    """Return the mean along an axis, which is dropped."""
    return torch.mean(tensor, dim=axis)


def max_over(tensor: Tensor, axis: int) -> Tensor:
    """Return the largest entries along an axis, which is dropped."""
    return torch.amax(tensor, dim=axis)


def histogram(
    tensor: Tensor, bins: int, low: float, high: float, every: int = 1
) -> NDArray[np.float64]:
    """Return how many of every n-th entry fall into each of equal bins from ``low`` to ``high``."""
    flat = tensor.permute(order_in_memory(tensor)).flatten()[::every]
    counts = torch.zeros(bins, dtype=torch.int64, device=tensor.device)
    for piece in torch.split(flat, _PIECE):
        places = (piece.float() - low).mul_(bins / (high - low))
        whole = places.to(torch.int16 if bins < 1 << 15 else torch.int64)  # small types are faster
        counts += torch.bincount(whole.clamp_(0, bins - 1), minlength=bins)
    array: NDArray[np.float64] = counts.double().cpu().numpy()
    return array


def log_softmax(tensor: Tensor, axis: int) -> Tensor:
    """Return the logarithms of the softmax along an axis."""
    return torch.log_softmax(tensor, dim=axis)


def pad_last(tensor: Tensor, count: int, axis: int) -> Tensor:
    """Append ``count`` copies of the last entry along an axis."""
    if count == 0:
        return tensor
    last = tensor.narrow(axis, tensor.shape[axis] - 1, 1)
    return torch.cat([tensor, torch.repeat_interleave(last, count, axis)], axis)


def positive(scale: Tensor) -> Tensor:
    """Return scales with zeros replaced by the smallest one whose reciprocal is finite."""
    return scale.clamp(min=torch.finfo(scale.dtype).tiny)


def sum(tensor: Tensor, axis: int | tuple[int, ...]) -> Tensor:
    """Sum over axes, which are dropped."""
    return torch.sum(tensor, dim=axis)


def count_nonzero(tensor: Tensor) -> int:
    """Return the number of nonzero entries, as a Python integer."""
    return int(torch.count_nonzero(tensor))


def first_true(flags: Tensor, count: int) -> Tensor:
    """Return flat flags with only the first ``count`` true ones set."""
    kept = torch.zeros_like(flags)
    kept[flags.nonzero()[:count]] = True
    return kept


def pairwise_distances(rows: Tensor) -> Tensor:
    """Return the Euclidean distances between all rows."""
    wide = rows.double()  # matrix products lose half of the digits for close rows
    return torch.cdist(wide, wide)


def products(rows: Tensor) -> Tensor:
    """Return the inner products of all rows, in float64 for further summation."""
    return (rows @ rows.T).double()


def to_numpy(tensor: Tensor) -> NDArray[np.float64]:
    """Return a copy as a NumPy array of float64."""
    array: NDArray[np.float64] = tensor.detach().double().cpu().numpy().copy()
    return array


def from_numpy(array: NDArray[Any], like: Tensor) -> Tensor:
    """Return an array as a tensor with the dtype and device of another one."""
    return torch.as_tensor(array).to(device=like.device, dtype=like.dtype)


def to_float(tensor: Tensor, like: Tensor) -> Tensor:
    """Cast to the dtype of another tensor."""
    return tensor.to(like.dtype)


def widen(tensor: Tensor) -> Tensor:
    """Cast half precision to float32; return other types unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def kth_smallest(flat: Tensor, k: int) -> Tensor:
    """Return the k-th smallest value (k from 1) of a flat tensor, exactly.

    For large tensors, a strided sample gives two values that almost certainly enclose the answer; only
    values between them are searched. If the answer is outside, ``kthvalue`` is used.
    """
    total = flat.numel()
    if total < _SAMPLED_FROM or flat.device.type == "meta":
        return torch.kthvalue(flat, k).values
    sample = flat[:: total // _SAMPLE_SIZE].sort().values
    center = k / total * sample.numel()
    slack = 4 * math.sqrt(sample.numel()) * 0.5 + 2
    low = sample[int(builtins.max(center - slack, 0))]
    high = sample[int(builtins.min(center + slack, sample.numel() - 1))]
    below = count_nonzero(flat < low)
    inside = flat[(flat >= low) & (flat <= high)]
    if below < k <= below + inside.numel():
        return torch.kthvalue(inside, k - below).values
    return torch.kthvalue(flat, k).values
