"""Copy a tree of modules like copy.deepcopy, in a fraction of the time.

Most attributes of a module are constants, which need no copy, or nearly empty dicts and sets. Modules with
compressors, their wrappers and their layer descriptions are copied as fast as plain modules.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from lilliput.config.layer import LayerInfo, Owner
from lilliput.frameworks.torch.weights import unshadowed

_CONSTANTS = frozenset({bool, int, float, str, type(None), torch.dtype})
_RECORDS = (nn.Module, LayerInfo, Owner)  # copied attribute by attribute,
_COPIED = [  # unless their class has one of these methods of its own
    (name, getattr(nn.Module, name, None))
    for name in (
        "__deepcopy__",
        "__reduce_ex__",
        "__reduce__",
        "__getnewargs__",
        "__getnewargs_ex__",
    )
]
_GET_STATE = getattr(nn.Module, "__getstate__", None)


def copy_tree(value: Any, memo: dict[Any, Any]) -> Any:
    """Return a deep copy of a module; ``memo`` is that of copy.deepcopy.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> twin = copy_tree(model, {})
    >>> twin[0] is model[0], torch.equal(twin[0].weight, model[0].weight)
    (False, True)
    """
    kind: Any = type(value)
    if kind in _CONSTANTS or (kind in (tuple, frozenset) and _are_constants(value)):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind is set and _are_constants(value):
        return memo.setdefault(id(value), set(value))
    if kind is tuple:
        return memo.setdefault(id(value), tuple(copy_tree(x, memo) for x in value))
    if kind is list:
        items: list[Any] = []
        memo[id(value)] = items
        items.extend(copy_tree(x, memo) for x in value)
        return items
    if kind is dict or (kind is OrderedDict and not value):
        copied = memo[id(value)] = kind()
        for key, x in value.items():
            name = key if type(key) in _CONSTANTS else copy_tree(key, memo)
            copied[name] = x if type(x) in _CONSTANTS else copy_tree(x, memo)
        return copied
    if kind not in memo:  # next to the identities of copied objects
        memo[kind] = issubclass(kind, _RECORDS) and _is_record(unshadowed(kind))
    return _copy_record(value, memo) if memo[kind] else copy.deepcopy(value, memo)


def _copy_record(value: Any, memo: dict[Any, Any]) -> Any:
    kind: Any = type(value)
    state = vars(value)
    if getattr(kind, "__getstate__", None) is not _GET_STATE:
        state = value.__getstate__()
        memo.setdefault(id(memo), []).append(state)  # or its identity would be given away again
        if type(state) is not dict:
            return copy.deepcopy(value, memo)
    twin = memo[id(value)] = kind.__new__(kind)
    copied = {name: x if type(x) in _CONSTANTS else copy_tree(x, memo) for name, x in state.items()}
    if issubclass(kind, nn.Module):
        twin.__setstate__(copied)
    else:
        vars(twin).update(copied)
    return twin


def _are_constants(values: Any) -> bool:
    return all(type(x) in _CONSTANTS for x in values)


def _is_record(kind: type) -> bool:
    return all(getattr(kind, name, None) is method for name, method in _COPIED)
