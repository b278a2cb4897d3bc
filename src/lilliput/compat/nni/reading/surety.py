"""Check whether a class of NNI in a program can be replaced by the current class without other changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from lilliput.compat.nni.classes.arguments import Unknown, read_arguments
from lilliput.compat.nni.imports.names import find_name, stack_of
from lilliput.compat.nni.reading.judging import (
    constructor_of_today,
    given_arguments,
    is_open,
    missing_reason,
    named_arguments,
    today_of,
)
from lilliput.compat.nni.reading.scopes import Bindings, Meaning
from lilliput.compat.nni.reading.uses import split
from lilliput.errors import LilliputError

# Methods that do the same with and without the shim, and their maximum number of arguments: masks
# that export_model() writes are in NNI's form with the shim only.
_SAME = {"compress": 0, "update_epoch": 1, "step": 0, "export_model": 1}
# Attributes that a compressed layer has with the shim only.
_WRAPPER_ONLY = {"module", "weight_mask", "bias_mask", "old_weight", "if_calculated", "prune_idx"}


def today_for_sure(
    tree: ast.Module, bindings: Bindings, node: ast.ImportFrom, alias: ast.alias
) -> str:
    """Return the path of the current class for an imported name, empty if the program needs NNI's form."""
    module, name = split(f"{node.module}.{alias.name}")
    found = find_name(module, name) if name else None
    if found is None or missing_reason(found) or bindings.stars:
        return ""
    today = today_of(module, name)
    if not today or getattr(found, "adapts", None) is None:
        # If a class is not adapted, the same object is behind both paths.
        return today if today and _is_same_object(found, today) else ""
    if stack_of(module) != "first" or _asks_layers(tree):
        return ""
    meaning = Meaning(f"{module}.{name}")
    return today if _is_used_alike(tree, bindings, meaning, found) else ""


def _is_same_object(found: Any, today: str) -> bool:
    from importlib import import_module

    home, _, name = today.rpartition(".")
    # lilliput.keras has the classes of lilliput itself, and importing it would import Keras.
    home = "lilliput" if home == "lilliput.keras" else home
    return getattr(import_module(home), name) is found


def _asks_layers(tree: ast.Module) -> bool:
    return any(isinstance(x, ast.Attribute) and x.attr in _WRAPPER_ONLY for x in ast.walk(tree))


def _is_used_alike(tree: ast.Module, bindings: Bindings, meaning: Meaning, found: Any) -> bool:
    """Whether the class is only called, compatibly, and only compatible methods of its objects are used."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node, said in _loads(tree, bindings):
        parent = parents.get(node)
        if said == [meaning]:
            if not (isinstance(parent, ast.Call) and parent.func is node):
                return False
            if not _is_alike(found, parent):
                return False
        elif Meaning(meaning.path, True) in said:
            if isinstance(node, ast.Call) and isinstance(parent, (ast.Assign, ast.Expr)):
                continue
            call = parents.get(parent) if parent is not None else None
            if not (isinstance(parent, ast.Attribute) and isinstance(call, ast.Call)):
                return False
            many = len(call.args) + len(call.keywords)
            if call.func is not parent or many > _SAME.get(parent.attr, -1):
                return False
        elif meaning in said:
            return False
    return True


def _loads(tree: ast.Module, bindings: Bindings) -> Iterator[tuple[ast.expr, list[Meaning]]]:
    for node in ast.walk(tree):
        is_read = isinstance(getattr(node, "ctx", None), ast.Load)
        if isinstance(node, ast.Call) or (isinstance(node, (ast.Name, ast.Attribute)) and is_read):
            yield node, bindings.meanings(node)


def _is_alike(found: Any, call: ast.Call) -> bool:
    """Whether the current constructor takes the same arguments, and reads the same rules."""
    args, kwargs = given_arguments(call)
    if is_open(call):
        return False
    if not found.forms:
        return True  # it passes its arguments on
    rules = [{"sparsity": 0.5}]
    try:
        today = constructor_of_today(found, args, kwargs)
        if today is None:
            return False
        given = read_arguments(found.__name__, found.forms, args, kwargs)
        stand_in = found.__new__(found)
        translated = stand_in._translated({**given, "config_list": rules, "model": Unknown()})
    except (LilliputError, TypeError):
        return False
    return (
        list(today) == named_arguments(found, args, kwargs) and translated["config_list"] is rules
    )
