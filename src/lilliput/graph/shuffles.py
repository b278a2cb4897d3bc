"""Channel shuffles as models write them: a view, a transposition and a view back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lilliput.graph.axes import FIXED
from lilliput.graph.ir import Op, Tensor
from lilliput.graph.stages import Route, Stage, find_routes
from lilliput.graph.walk import Fold, Value, Walk


@dataclass(frozen=True, eq=False)
class Chain:
    """The ops of one shuffle, and how they split and reorder which dimension."""

    ops: tuple[Op, ...]
    dim: int
    sizes: tuple[int, ...]
    order: tuple[int, ...]


def find_chain(first: Op) -> Chain | None:
    """Return the shuffle that starts with an op, or None."""
    ops = list(_line(first))
    turns = [op for op in ops if op.name == "permute"]
    if len(turns) != 1 or first.name != "reshape" or ops[-1].name != "reshape":
        return None
    whole = _shape(first.arguments["input"])
    parts, back = _shape(first.results), _shape(ops[-1].results)
    if whole != back or len(parts) <= len(whole):
        return None
    dim = next((d for d, n in enumerate(whole) if parts[d] != n), len(whole))
    count = len(parts) - len(whole) + 1
    if dim == len(whole) or parts[dim + count :] != whole[dim + 1 :]:
        return None
    order = turns[0].arguments["dims"]
    inside = [d - dim for d in order[dim : dim + count]]
    if sorted(inside) != list(range(count)) or inside == sorted(inside):
        return None
    outside = [*order[:dim], *order[dim + count :]]
    if outside != sorted(outside):
        return None
    return Chain(tuple(ops), dim, parts[dim : dim + count], tuple(inside))


def _line(op: Op) -> Iterator[Op]:
    """Yield a view and the ops after it, one after the other, until the next view."""
    yield op
    while isinstance(op.results, Tensor) and len(op.results.users) == 1:
        if op.results.is_output:
            return
        (op,) = op.results.users
        if op.name not in ("reshape", "permute", "identity"):
            return
        yield op
        if op.name == "reshape":
            return


def _shape(tensor: Any) -> tuple[int, ...]:
    return tensor.shape if isinstance(tensor, Tensor) else ()


def shuffle(walk: Walk, chain: Chain) -> dict[Op, Value] | None:
    """Return the value of each op of a shuffle, or None if it must be handled view by view."""
    source = walk.value(chain.ops[0].arguments["input"])
    axis = walk.shuffle(source.axes[chain.dim], chain.sizes, chain.order)
    if axis is None:
        return None
    before, after = source.axes[: chain.dim], source.axes[chain.dim + 1 :]
    shrinks = walk.shuffled[walk.op].shrinks
    found, turned = {}, False
    for op in chain.ops[:-1]:
        turned |= op.name == "permute"
        at = chain.dim + (chain.order.index(shrinks) if turned else shrinks)
        fold = Fold(at, source.axes[chain.dim])
        middle = (FIXED,) * len(chain.sizes)
        found[op] = Value(_shape(op.results), (*before, *middle, *after), fold=fold)
    found[chain.ops[-1]] = Value(source.shape, (*before, axis, *after))
    return found


def find_stages(walk: Walk) -> tuple[list[Stage], set[Op]]:
    """Return the stages of mixed channels, and the shuffles that must be handled view by view."""
    if not walk.shuffled:
        return [], set()
    rows = [(x.trail, len(x.rows)) for x in walk.balances]
    ragged = {name: (x.trail, len(x.rows)) for name, x in walk.ragged.items()}
    stages, failed = [], set[Op]()
    for route in find_routes(walk.axes.trails, walk.axes.meetings, rows, ragged):
        stage = _stage(walk, route)
        if stage.is_faithful and not _is_tied(walk, stage) and stage.can_shrink():
            stages.append(stage)
        else:
            mixed = set(route.trails)
            failed |= {op for op, trail in walk.shuffled.items() if trail in mixed}
    return stages, failed


def _stage(walk: Walk, route: Route) -> Stage:
    labels = walk.labels
    classes = {key: labels.find(labels.fresh(key, x.size)) for key, x in route.made.items()}
    rows = {name: walk.ragged[name].rows for name in route.ragged}
    inputs = {name: labels.find(x.ravel()).reshape(x.shape) for name, x in rows.items()}
    return Stage(route, classes, inputs)


def _is_tied(walk: Walk, stage: Stage) -> bool:
    """Whether channels of a stage are pinned, refined, or appear where no trail leads."""
    labels = walk.labels
    if labels.is_pinned(stage.roots).any():
        return True
    everything = np.arange(1, labels.count)
    members = everything[np.isin(labels.find(everything), stage.roots)]
    own = np.concatenate([labels.fresh(key, x.size) for key, x in stage.route.made.items()])
    if not np.isin(members, own).all() or len(labels.expand(own)) > 1:
        return True
    loose = [x.rows for x in walk.balances if x.trail is None]
    loose += [x.rows for x in walk.ragged.values() if x.trail is None]
    return any(np.isin(labels.find(rows.ravel()), stage.roots).any() for rows in loose)
