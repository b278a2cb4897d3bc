"""Channel shuffles as models write them: a view, a transposition and a view back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, fx

from lilliput.speedup.axes import FIXED
from lilliput.speedup.stages import Route, Stage, find_routes
from lilliput.speedup.walk import Fold, Value, Walk, op_name, shape_of

_VIEWS = ("view", "reshape", "_unsafe_view", "unflatten", "flatten")
_TURNS = ("permute", "transpose", "swapaxes", "swapdims")
_COPIES = ("contiguous", "clone")


@dataclass(frozen=True, eq=False)
class Chain:
    """The ops of one shuffle, and how it cuts and turns which dimension."""

    nodes: tuple[fx.Node, ...]
    dim: int
    sizes: tuple[int, ...]
    order: tuple[int, ...]


def find_chain(first: fx.Node) -> Chain | None:
    """Return the shuffle that a node begins, None if it is not one."""
    nodes = list(_line(first))
    turns = [i for i, node in enumerate(nodes) if op_name(node) in _TURNS]
    if len(turns) != 1 or op_name(first) not in _VIEWS or op_name(nodes[-1]) not in _VIEWS:
        return None
    whole, parts, back = (_shape(x) for x in (first.args[0], first, nodes[-1]))
    if whole != back or len(parts) <= len(whole):
        return None
    dim = next((d for d, n in enumerate(whole) if parts[d] != n), len(whole))
    count = len(parts) - len(whole) + 1
    if dim == len(whole) or parts[dim + count :] != whole[dim + 1 :]:
        return None
    order = _order(nodes[turns[0]], len(parts))
    inside = [d - dim for d in order[dim : dim + count]]
    if sorted(inside) != list(range(count)) or inside == sorted(inside):
        return None
    outside = [*order[:dim], *order[dim + count :]]
    if outside != sorted(outside):
        return None
    return Chain(tuple(nodes), dim, parts[dim : dim + count], tuple(inside))


def _line(node: fx.Node) -> Iterator[fx.Node]:
    """Yield a view and what follows it, one op after the other, until the next view."""
    yield node
    while len(node.users) == 1:
        (node,) = node.users
        if node.op != "call_function" or op_name(node) not in (*_VIEWS, *_TURNS, *_COPIES):
            return
        yield node
        if op_name(node) in _VIEWS:
            return


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return shape_of(value) if isinstance(value, Tensor) else ()


def _order(node: fx.Node, count: int) -> list[int]:
    order = list(range(count))
    if op_name(node) == "permute":
        dims: Any = node.args[1]
        return [int(d) % count for d in dims]
    i, j = (int(x) % count for x in node.args[1:3])  # type: ignore[arg-type]
    order[i], order[j] = order[j], order[i]
    return order


def shuffle(walk: Walk, chain: Chain) -> dict[fx.Node, Value] | None:
    """Return the value of each op of a shuffle, None if it has to be taken view by view."""
    source = walk.resolve(chain.nodes[0].args[0])
    if not isinstance(source, Value):
        return None
    axis = walk.shuffle(source.axes[chain.dim], chain.sizes, chain.order)
    if axis is None:
        return None
    before, after = source.axes[: chain.dim], source.axes[chain.dim + 1 :]
    shrinks = walk.shuffled[walk.node.name].shrinks
    found, turned = {}, False
    for node in chain.nodes[:-1]:
        turned |= op_name(node) in _TURNS
        at = chain.dim + (chain.order.index(shrinks) if turned else shrinks)
        shape = _shape(node)
        fold = Fold(at, source.axes[chain.dim])
        middle = (FIXED,) * len(chain.sizes)
        found[node] = Value(shape, (*before, *middle, *after), fold=fold)
    found[chain.nodes[-1]] = Value(source.shape, (*before, axis, *after))
    return found


def find_stages(walk: Walk) -> tuple[list[Stage], set[str]]:
    """Return what shuffles mix, and the shuffles that have to be taken view by view instead."""
    if not walk.shuffled:
        return [], set()
    rows = [(x.trail, len(x.rows)) for x in walk.balances]
    ragged = {name: (walk.ragged_trails[name], len(x)) for name, x in walk.ragged.items()}
    stages, failed = [], set()
    for route in find_routes(walk.axes.trails, walk.axes.meetings, rows, ragged):
        stage = _stage(walk, route)
        if stage.is_faithful and not _is_tied(walk, stage) and stage.can_shrink():
            stages.append(stage)
        else:
            mixed = set(route.trails)
            failed |= {name for name, trail in walk.shuffled.items() if trail in mixed}
    return stages, failed


def _stage(walk: Walk, route: Route) -> Stage:
    labels = walk.labels
    classes = {key: labels.find(labels.fresh(key, x.size)) for key, x in route.made.items()}
    rows = {name: walk.ragged[name] for name in route.ragged}
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
    loose += [rows for name, rows in walk.ragged.items() if walk.ragged_trails[name] is None]
    return any(np.isin(labels.find(rows.ravel()), stage.roots).any() for rows in loose)
