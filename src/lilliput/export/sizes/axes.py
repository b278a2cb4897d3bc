"""Which sizes of the inputs a model leaves open, found by running it at others.

A model says nowhere that its sequences may be of any length, or that its images must be 224 pixels wide;
but it runs at another length, and fails at another width. So it is run with another size of one axis after
the other, and of those that inputs have in common (tokens and their mask).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from lilliput.export.sizes.other_sizes import BATCH

Place = tuple[int, int]  # which of the tensors in the inputs, and which of its axes
_SPATIAL = {4: ("height", "width"), 5: ("depth", "height", "width")}
_SMALLEST = 2  # torch takes a size of one for a constant, and models broadcast it
_STRIDE = 32  # many networks take multiples of it only


@dataclass(frozen=True)
class Axis:
    """One size that inputs share.

    Parameters
    ----------
    name : str
        What it is called in the file.
    places : tuple of (int, int)
        The tensors among the inputs, and their axes, that have this size.
    size : int
        Of the example.
    other : int
        Another size that the model takes, 0 if it takes none.
    hint : object
        What ``torch.export`` is told of it, by default ``Dim.AUTO``.
    is_asked : bool
        Whether the user asked for it: then it is refused, not fixed, if the model does not allow it.
    """

    name: str
    places: tuple[Place, ...]
    size: int
    other: int = 0
    hint: Any = None
    is_asked: bool = False


def resized(inputs: Any, axes: Sequence[Axis], sizes: Mapping[str, int]) -> Any:
    """Return inputs with other sizes: the first entries along an axis, all again where it gets longer.

    Examples
    --------
    >>> axis = Axis("batch", ((0, 0),), 2)
    >>> resized((torch.tensor([5, 6]),), [axis], {"batch": 3})
    (tensor([5, 6, 5]),)
    """
    leaves, spec = tree_flatten(inputs)
    numbers = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    for axis in axes:
        size = sizes.get(axis.name, axis.size)
        for number, dim in axis.places if size != axis.size else ():
            tensor = leaves[numbers[number]]
            index = torch.arange(size, device=tensor.device) % axis.size
            leaves[numbers[number]] = tensor.index_select(dim, index)
    return tree_unflatten(leaves, spec)


def batch_axis(tensors: Sequence[Tensor], hint: Any = torch.export.Dim.DYNAMIC) -> list[Axis]:
    """Return the first axis of the first input, with all inputs that have as many rows."""
    rows = next((x.shape[0] for x in tensors if x.dim()), 0)
    places = tuple((i, 0) for i, x in enumerate(tensors) if x.dim() and x.shape[0] == rows)
    other = 1 if rows > 1 else 2
    return [Axis(BATCH, places, rows, other, hint, is_asked=True)] if places and rows else []


def find_axes(
    tensors: Sequence[Tensor], names: Sequence[str], runs_at: Callable[[list[Axis]], bool]
) -> list[Axis]:
    """Return the axes besides the batch at which a model takes other sizes.

    Parameters
    ----------
    tensors : list of tensor
        The inputs.
    names : list of str
        What they are called.
    runs_at : callable
        Whether the model runs if each of some axes has its other size.
    """
    batch = {place for axis in batch_axis(tensors) for place in axis.places}
    free = [place for place in _candidates(tensors) if place not in batch]
    found: list[Axis] = []
    for group in _groups(tensors, free):
        known = {place for axis in found for place in axis.places}
        places = tuple(place for place in group if place not in known)
        if not places or (len(group) > 1 and len(places) < 2):
            continue
        size = tensors[places[0][0]].shape[places[0][1]]
        for other in _others(size):
            axis = Axis("", places, size, other)
            if runs_at([axis]):
                found.append(axis)
                break
    return named(found, tensors, names)


def _candidates(tensors: Sequence[Tensor]) -> Iterator[Place]:
    for i, x in enumerate(tensors):
        is_tokens = x.dim() == 2 and not x.is_floating_point()
        for dim, size in enumerate(x.shape):
            if size >= _SMALLEST or (is_tokens and dim == 1):
                yield i, dim


def _groups(tensors: Sequence[Tensor], free: Sequence[Place]) -> Iterator[list[Place]]:
    """Yield places of one size at one axis, then each place alone, then all of one size."""

    def together(key: Callable[[Place], Any]) -> list[list[Place]]:
        found: dict[Any, list[Place]] = {}
        for place in free:
            found.setdefault(key(place), []).append(place)
        return [group for group in found.values() if len(group) > 1]

    yield from together(lambda place: (tensors[place[0]].shape[place[1]], place[1]))
    yield from ([place] for place in free)
    yield from together(lambda place: tensors[place[0]].shape[place[1]])


def _others(size: int) -> list[int]:
    """Return sizes to try, the cheap ones first.

    All are far from the present one: a network that flattens its image still takes one pixel more where
    pooling rounds it away, and nobody is helped by a file for 8 to 9 pixels.
    """
    sizes = (size // 2, size - _STRIDE, 2 * size)
    return [x for x in dict.fromkeys(sizes) if x >= _SMALLEST]


def named(axes: Sequence[Axis], tensors: Sequence[Tensor], names: Sequence[str]) -> list[Axis]:
    """Return axes with names that a reader knows, each its own."""
    taken = {BATCH, *(axis.name for axis in axes if axis.name)}
    result = []
    for axis in axes:
        number, dim = axis.places[0]
        plain = axis.name or _name(axis, axes, tensors[number], number, dim)
        name = plain if axis.name or plain not in taken else f"{names[number]}_{plain}"
        if not axis.name and name in taken:
            name = f"{name}_{dim}"
        taken.add(name)
        result.append(replace(axis, name=name))
    return result


def _name(axis: Axis, axes: Sequence[Axis], tensor: Tensor, number: int, dim: int) -> str:
    """Return what a size is usually called, by the number of axes and those that are open."""
    if sum(i == number for i, _ in axis.places) > 1 and tensor.dim() in _SPATIAL:
        return "size"  # square images only
    open_ = sorted({d for x in axes for i, d in x.places if i == number and d})
    words = _SPATIAL.get(tensor.dim(), ())
    if len(open_) == len(words):
        return words[open_.index(dim)]
    if words and tensor.dim() - dim <= len(words):
        return words[dim - tensor.dim()]
    if tensor.dim() == 3:
        return "sequence" if len(open_) == 1 or dim == 1 else "features"
    if tensor.dim() == 2 and dim == 1:
        return "length" if tensor.is_floating_point() else "sequence"
    return f"axis_{dim}"


def expected_axes(tensors: Sequence[Tensor], names: Sequence[str]) -> list[Axis]:
    """Return the axes besides the batch that a reader expects to be open: images, sequences."""
    found = []
    for i, x in enumerate(tensors):
        count = len(_SPATIAL.get(x.dim(), ()))
        dims = [*range(x.dim() - count, x.dim())] if count else []
        dims = [1] if x.dim() == 2 and not x.is_floating_point() else dims
        found += [Axis("", ((i, dim),), x.shape[dim]) for dim in dims]
    return named(found, tensors, names)
