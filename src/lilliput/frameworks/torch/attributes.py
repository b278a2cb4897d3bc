"""Sizes stored as attributes of a user's modules, such as ``num_heads``, found by matching numbers.

A view, split or slice whose numbers must change is in some module's forward. If that module has
an attribute with the old number, the attribute is a candidate for the new one. Only a comparison of
outputs can show whether it is the source, so candidates are tried and verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from lilliput.frameworks.torch.cutting import named_tensors
from lilliput.frameworks.torch.layer_sizes import sizes_of
from lilliput.frameworks.torch.rewrite import Edit
from lilliput.graph.cuts import Cut
from lilliput.graph.plan import Attributes

OTHER_SIZES = re.compile(
    r"head_dim|kernel|patch|image|img|window|vocab|classes|position|layers|ratio|stride|points|indices"
)


def find_attributes(model: nn.Module, edits: Sequence[Edit]) -> Attributes:
    """Return attributes that could be the source of numbers that change in the code."""
    wanted: dict[tuple[str, int], set[int]] = {}
    for edit in edits:
        for old, new in edit.numbers():
            for path in owners_of(edit):
                wanted.setdefault((path, old), set()).add(new)
    return _matching(model, wanted)


def find_remembered(model: nn.Module, cuts: Sequence[Cut]) -> Attributes:
    """Return attributes with which modules may check the sizes of their layers."""
    owners = [cut.tensor.rpartition(".")[0].rpartition(".")[0] for cut in cuts]
    return _matching(model, _changes(model, zip(owners, cuts, strict=True)))


def find_in_module(model: nn.Module, cuts: Sequence[Cut], path: str) -> Attributes:
    """Return attributes with which one module may check the sizes of anything in it."""
    prefix = f"{path}." if path else ""
    inside = [(path, cut) for cut in cuts if cut.tensor.startswith(prefix)]
    return _matching(model, _changes(model, inside))


def _changes(model: nn.Module, cuts: Iterable[tuple[str, Cut]]) -> dict[tuple[str, int], set[int]]:
    """Return the new values of each size that cuts change, by the module that may store it."""
    wanted: dict[tuple[str, int], set[int]] = {}
    tensors = named_tensors(model)
    for path, cut in cuts:
        old = tensors[cut.tensor].shape[cut.dim]
        wanted.setdefault((path, old), set()).add(cut.keep.shape[-1])
    return wanted


def _matching(model: nn.Module, wanted: dict[tuple[str, int], set[int]]) -> Attributes:
    found: Attributes = {}
    for (path, old), news in wanted.items():
        if len(news) > 1:
            continue
        (new,) = news
        module = model.get_submodule(path)
        known = sizes_of(module)  # which are set anyway
        for name, value in vars(module).items():
            if name.startswith("_") or name == "training" or name in known:
                continue
            changed = _replaced(found.get((path, name), value), old, new)
            if changed is not None:
                found[path, name] = changed
    return found


def owners_of(edit: Edit) -> list[str]:
    """Return the module that contains an op, and its parent."""
    stack = [str(path) for path, _ in (edit.node.meta.get("nn_module_stack") or {}).values()]
    return stack[:-3:-1]


def _replaced(value: Any, old: int, new: int) -> Any:
    """Return a value with a number replaced, or None if it does not contain it."""
    if type(value) is int and value == old:
        return new
    if isinstance(value, (tuple, list)) and old in value and all(type(x) is int for x in value):
        items = [new if x == old else x for x in value]
        return items if isinstance(value, list) else tuple(items)
    return None


def set_attributes(model: nn.Module, attributes: Attributes) -> None:
    """Set attributes of a model; ``'feature_info.0.num_chs'`` is an item of one."""
    for (path, name), value in attributes.items():
        module = model.get_submodule(path)
        first, *keys = name.split(".")
        setattr(module, first, _with(vars(module).get(first), keys, value))


def held_value(module: nn.Module, name: str) -> Any:
    """Return an attribute of a module, or an item of one; None if there is none."""
    first, *keys = name.split(".")
    value: Any = vars(module).get(first)
    for key in keys:
        try:
            value = value[int(key) if isinstance(value, (list, tuple)) else key]
        except (IndexError, KeyError, TypeError, ValueError):
            return None
    return value


def _with(value: Any, keys: Sequence[str], new: Any) -> Any:
    """Return a value with an item replaced; lists are copied, because they may be shared."""
    if not keys:
        return new
    if isinstance(value, dict):
        return {**value, keys[0]: _with(value[keys[0]], keys[1:], new)}
    at = int(keys[0])
    items = [_with(x, keys[1:], new) if i == at else x for i, x in enumerate(value)]
    return items if isinstance(value, list) else tuple(items)


def choices(model: nn.Module, explained: Attributes, remembered: Attributes) -> list[Attributes]:
    """Return the sets to try: those found in the code, none, all; then all but one kind, and single kinds.

    The same attribute of the same class is treated alike everywhere. Among those found in the code, the
    ones whose name does not refer to something else of the same size come first.
    """
    everything = {**remembered, **explained}
    widths = {k: v for k, v in explained.items() if not OTHER_SIZES.search(k[1])}
    kinds = sorted({_kind(model, key) for key in explained})
    sets = []
    if len(kinds) > 1:
        sets = [set(kinds) - {kind} for kind in kinds] + [{kind} for kind in kinds]
    parts = [{k: v for k, v in explained.items() if _kind(model, k) in s} for s in sets]
    listed: list[Attributes] = [widths, explained, {}, everything, *parts]
    return [x for i, x in enumerate(listed) if x not in listed[:i]]


def less_by_one(attributes: Attributes, model: nn.Module) -> Iterator[set[tuple[str, str]]]:
    """Yield the attributes without one kind, for each kind."""
    for kind in sorted({_kind(model, key) for key in attributes}):
        yield {key for key in attributes if _kind(model, key) != kind}


def _kind(model: nn.Module, key: tuple[str, str]) -> tuple[str, str]:
    return type(model.get_submodule(key[0])).__name__, key[1]
