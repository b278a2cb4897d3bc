"""Attributes that the code of a module reads from inner modules, as far as its source shows.

A parent that computes with ``self.fc.weight`` instead of calling ``self.fc`` needs that very layer. Only
reads in ``forward`` and the methods that it calls count, not those in initialization.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Read:
    """An attribute that is read from an inner module.

    Parameters
    ----------
    path : str
        The module, as in ``get_submodule``; ``*`` for any item of a list.
    attribute : str
        The attribute.
    place : str
        The method and line.
    """

    path: str
    attribute: str
    place: str

    def is_of(self, path: str) -> bool:
        """Whether it is read from the module at a path."""
        own, parts = self.path.split("."), path.split(".")
        pairs = zip(own, parts, strict=False)
        return len(own) == len(parts) and all(x in ("*", part) for x, part in pairs)


def reads_of(module: nn.Module, path: str) -> list[Read]:
    """Return the attributes that the code of a module reads from the module at a path inside it.

    Examples
    --------
    >>> layer = nn.TransformerEncoderLayer(8, 2)
    >>> [read.attribute for read in reads_of(layer, "linear1")]
    ['weight', 'bias']
    """
    cls: Any = type(module)
    return [read for read in reads_in(cls) if read.is_of(path)]


@lru_cache(256)
def reads_in(cls: Any) -> tuple[Read, ...]:
    """Return what ``forward`` of a class, and its methods called there, read from inner modules."""
    found: dict[tuple[str, str], Read] = {}
    waiting, seen = ["forward"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        reader = _read(inspect.getattr_static(cls, name, None), f"{cls.__name__}.{name}")
        if reader is not None:
            waiting += sorted(reader.called)
            for read in reader.found:
                found.setdefault((read.path, read.attribute), read)
    return tuple(found.values())


def _read(function: Any, title: str) -> _Reader | None:
    """Return the reads of a method or property, or None if it has no source."""
    function = function.fget if isinstance(function, property) else function
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or not tree.args.args:
        return None
    reader = _Reader(tree.args.args[0].arg, title, first)
    for statement in tree.body:
        reader.visit(statement)
    return reader


class _Reader(ast.NodeVisitor):
    """Follows ``self.a.b``, local names of it and loops over it through a method."""

    def __init__(self, own: str, title: str, first: int) -> None:
        self.title, self.first = title, first
        self.names: dict[str, str] = {own: ""}  # local name -> path of a module
        self.found: list[Read] = []
        self.called: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node.value)
        if path == "":
            self.called.add(node.attr)
        elif path is not None:
            line = self.first + node.lineno - 1
            self.found.append(Read(path, node.attr, f"{self.title}, line {line}"))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        path = self._path(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._name(target.id, path)

    def visit_For(self, node: ast.For) -> None:
        path = self._path(node.iter)
        if isinstance(node.target, ast.Name):
            self._name(node.target.id, None if path is None else f"{path}.*".lstrip("."))
        self.generic_visit(node)

    def _name(self, name: str, path: str | None) -> None:
        if path:
            self.names[name] = path
        else:
            self.names.pop(name, None)

    def _path(self, node: ast.AST) -> str | None:
        """Return the path of the module that an expression refers to, or None."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            path = self._path(node.value)
            if path is None:
                return None
            part = node.attr if isinstance(node, ast.Attribute) else _index(node.slice)
            return f"{path}.{part}" if path else part
        return None


def _index(node: ast.AST) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "*"
