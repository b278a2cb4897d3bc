"""Find the dynamic input sizes of a model by running it at other sizes.

A model does not declare that its sequences may have any length, or that its images must be 224 pixels
wide; but it runs at another length, and fails at another width. So it is run with another size of one axis
after the other, and of axes that inputs share (tokens and their mask).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from lilliput.frameworks import part_for
from lilliput.frameworks.exporting.simulation import Simulation, Tensor
from lilliput.frameworks.exporting.sizes import BATCH, Axis, AxisPlace

_SPATIAL = {4: ("height", "width"), 5: ("depth", "height", "width")}
_SMALLEST = 2  # torch treats a size of one as a constant, and models broadcast it
_STRIDE = 32  # many networks only accept multiples of it


def choose_axes(simulation: Simulation, dynamic_batch: bool, dynamic_shapes: Any) -> list[Axis]:
    """Return the input sizes to make dynamic."""
    tensors = simulation.tensors(simulation.inputs)
    if not isinstance(dynamic_shapes, bool):
        names, part = simulation.input_names(), part_for(simulation.model, "export.sizes")
        return named(part.asked_axes(tensors, names, dynamic_shapes), tensors, names)
    batch = batch_axis(tensors)
    chosen = batch if dynamic_batch else []
    if not dynamic_shapes:
        return chosen

    def runs(axes: list[Axis], sizes: dict[str, int]) -> bool:
        return simulation.takes(replace(simulation, axes=tuple(axes)).resized(sizes))

    one_row = {axis.name: 1 for axis in batch}
    small = [axis for axis in batch if runs(batch, one_row)]

    def runs_at(axes: list[Axis]) -> bool:
        numbers = [replace(axis, name=str(i)) for i, axis in enumerate(axes)]
        return runs([*small, *numbers], {**one_row, **{x.name: x.other for x in numbers}})

    return chosen + find_axes(tensors, simulation.input_names(), runs_at)


def batch_axis(tensors: Sequence[Tensor]) -> list[Axis]:
    """Return the first axis of the first input, with all inputs that have the same number of rows."""
    rows = next((x.shape[0] for x in tensors if x.ndim), 0)
    places = tuple((i, 0) for i, x in enumerate(tensors) if x.ndim and x.shape[0] == rows)
    other = 1 if rows > 1 else 2
    return [Axis(BATCH, places, rows, other, is_asked=True)] if places and rows else []


def find_axes(
    tensors: Sequence[Tensor], names: Sequence[str], runs_at: Callable[[list[Axis]], bool]
) -> list[Axis]:
    """Return the axes, other than the batch, at which a model accepts other sizes.

    Parameters
    ----------
    tensors : list of tensor
        The inputs.
    names : list of str
        Their names.
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


def _candidates(tensors: Sequence[Tensor]) -> Iterator[AxisPlace]:
    for i, x in enumerate(tensors):
        is_tokens = x.ndim == 2 and not _is_float(x)
        for dim, size in enumerate(x.shape):
            if size >= _SMALLEST or (is_tokens and dim == 1):
                yield i, dim


def _groups(tensors: Sequence[Tensor], free: Sequence[AxisPlace]) -> Iterator[list[AxisPlace]]:
    """Yield axes of equal size and position, then each axis alone, then all of equal size."""

    def together(key: Callable[[AxisPlace], Any]) -> list[list[AxisPlace]]:
        found: dict[Any, list[AxisPlace]] = {}
        for place in free:
            found.setdefault(key(place), []).append(place)
        return [group for group in found.values() if len(group) > 1]

    yield from together(lambda place: (tensors[place[0]].shape[place[1]], place[1]))
    yield from ([place] for place in free)
    yield from together(lambda place: tensors[place[0]].shape[place[1]])


def _others(size: int) -> list[int]:
    """Return sizes to try, the cheap ones first.

    All are far from the current one: a network that flattens its image still accepts one pixel more if
    pooling rounds it away, and a file for 8 to 9 pixels would be useless.
    """
    sizes = (size // 2, size - _STRIDE, 2 * size)
    return [x for x in dict.fromkeys(sizes) if x >= _SMALLEST]


def named(axes: Sequence[Axis], tensors: Sequence[Tensor], names: Sequence[str]) -> list[Axis]:
    """Return axes with unique, familiar names."""
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
    """Return the usual name of a size, given the number of axes and the dynamic ones."""
    rank: int = tensor.ndim
    if sum(i == number for i, _ in axis.places) > 1 and rank in _SPATIAL:
        return "size"  # square images only
    open_ = sorted({d for x in axes for i, d in x.places if i == number and d})
    words = _SPATIAL.get(rank, ())
    if len(open_) == len(words):
        return words[open_.index(dim)]
    if words and rank - dim <= len(words):
        return words[dim - rank]
    if rank == 3:
        return "sequence" if len(open_) == 1 or dim == 1 else "features"
    if rank == 2 and dim == 1:
        return "length" if _is_float(tensor) else "sequence"
    return f"axis_{dim}"


def expected_axes(tensors: Sequence[Tensor], names: Sequence[str]) -> list[Axis]:
    """Return the axes, other than the batch, that users expect to be dynamic: images, sequences."""
    found = []
    for i, x in enumerate(tensors):
        count = len(_SPATIAL.get(x.ndim, ()))
        dims = [*range(x.ndim - count, x.ndim)] if count else []
        dims = [1] if x.ndim == 2 and not _is_float(x) else dims
        found += [Axis("", ((i, dim),), x.shape[dim]) for dim in dims]
    return named(found, tensors, names)


def _is_float(tensor: Tensor) -> bool:
    return "float" in str(tensor.dtype)
