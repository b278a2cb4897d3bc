"""Modules and tensors in plain attributes of modules: in lists and dicts, and behind bound methods.

Replacing a registered child changes none of these: a module that also keeps its layers in a list, and calls
them from there, would continue to run the old ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))  # children, parameters, hooks
_SCALARS = (str, bytes, int, float)


def find_unregistered(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Return, for each id of a module or tensor in plain attributes, the modules and names of these.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> model.todo = [model[0]]
    >>> find_unregistered(model)[id(model[0])][0][1]
    'todo'
    """
    children = {id(module) for module in model.modules()}
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            for held in () if name in _OF_EVERY_MODULE else _search(value, children):
                found.setdefault(id(held), []).append((module, name))
    return found


def _search(attribute: Any, children: Collection[int]) -> Iterator[Any]:
    """Yield the modules and tensors in an attribute; the model's own modules are not searched further."""
    waiting, seen = [attribute], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, _SCALARS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (nn.Module, Tensor)):
            yield value
        if isinstance(value, nn.Module) and id(value) not in children:
            waiting += vars(value).values()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            waiting += value
        elif isinstance(value, MethodType):
            waiting.append(value.__self__)
        elif isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
