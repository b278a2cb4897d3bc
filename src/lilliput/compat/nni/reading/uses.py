"""Find where a program uses NNI: names, constructors, methods and config lists."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TypeGuard

from lilliput.compat.nni.config.keys import OLD_KEYS, PRUNING_KEYS, QUANTIZATION_KEYS, RULE_KEYS
from lilliput.compat.nni.imports.names import names_at
from lilliput.compat.nni.imports.tables import PATHS
from lilliput.compat.nni.reading.scopes import Bindings

_CONFIG_NAMES = ("config_list", "configure_list", "cfg_list")
_CATCH_IMPORTS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass(frozen=True)
class NameUse:
    """A name of NNI, imported or reached as an attribute of a module."""

    line: int
    module: str
    name: str = ""  # empty: the module itself
    is_guarded: bool = False  # the program continues without it


@dataclass(frozen=True)
class CallUse:
    """A call of a class or function of NNI, or of a method of such an object."""

    line: int
    paths: tuple[str, ...]  # what may be called
    node: ast.Call
    method: str = ""


@dataclass(frozen=True)
class RulesUse:
    """A config list that is written out in the program, and its classes."""

    line: int
    node: ast.List
    paths: tuple[str, ...] = ()


@dataclass
class Uses:
    """All uses of NNI in a program, in the order of lines."""

    names: list[NameUse] = field(default_factory=list)
    calls: list[CallUse] = field(default_factory=list)
    rules: list[RulesUse] = field(default_factory=list)


def split(path: str) -> tuple[str, str]:
    """Return the module of a dotted path and the name in it, empty for the module itself.

    Examples
    --------
    >>> split("nni.compression.torch.LevelPruner"), split("nni.common.graph_utils.build")
    (('nni.compression.torch', 'LevelPruner'), ('nni', 'common'))
    """
    module = path
    while module not in PATHS:
        module = module.rpartition(".")[0]
    return module, path[len(module) + 1 :].partition(".")[0]


def find_uses(tree: ast.Module) -> Uses:
    """Return the parts of NNI that a parsed program uses."""
    return _Reader(tree).uses


class _Reader(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.bindings = Bindings(tree)
        self.uses = Uses()
        self.guards = 0
        self.seen: set[tuple[int, str, str]] = set()
        self.lists: dict[ast.List, list[str]] = {}
        self.visit(tree)
        for node, paths in self.lists.items():
            self.uses.rules.append(RulesUse(node.lineno, node, tuple(dict.fromkeys(paths))))
        self.uses.rules.sort(key=lambda use: use.line)

    def add_name(self, line: int, path: str) -> None:
        module, name = split(path)
        if (line, module, name) not in self.seen:
            self.seen.add((line, module, name))
            self.uses.names.append(NameUse(line, module, name, self.guards > 0))

    def visit_Try(self, node: ast.Try) -> None:
        """Treat an import whose failure is caught as one that may be missing."""
        guards = any(_catches_imports(handler) for handler in node.handlers)
        self.guards += guards
        for statement in node.body:
            self.visit(statement)
        self.guards -= guards
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == "nni":
                self.add_name(node.lineno, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level == 0 and module.partition(".")[0] == "nni":
            for alias in node.names:
                star = alias.name == "*"
                self.add_name(node.lineno, module if star else f"{module}.{alias.name}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        paths = [m.path for m in self.bindings.meanings(node) if not m.is_object]
        for path in paths:
            module, name = split(path)
            if name and path == f"{module}.{name}":
                self.add_name(node.lineno, path)
        self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        """Read names that can only come from a star import."""
        is_free = isinstance(node.ctx, ast.Load) and not self.bindings.scopes[node].find(node.id)
        for meaning in self.bindings.meanings(node) if is_free else ():
            module, name = split(meaning.path)
            if name in names_at(module):
                self.add_name(node.lineno, meaning.path)

    def visit_Call(self, node: ast.Call) -> None:
        paths = tuple(m.path for m in self.bindings.meanings(node.func) if not m.is_object)
        if paths:
            self.uses.calls.append(CallUse(node.lineno, paths, node))
            self._read_rules(node, paths)
        elif isinstance(node.func, ast.Attribute):
            objects = tuple(m.path for m in self.bindings.meanings(node.func.value) if m.is_object)
            if objects:
                self.uses.calls.append(CallUse(node.lineno, objects, node, node.func.attr))
        self._read_import_module(node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Treat a list with a typical name as a config list, even if it is passed through a function."""
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if any(name.endswith(_CONFIG_NAMES) for name in names) and is_rules(node.value):
            self.lists.setdefault(node.value, [])
        self.generic_visit(node)

    def _read_rules(self, node: ast.Call, paths: tuple[str, ...]) -> None:
        named = [word.value for word in node.keywords if word.arg in _CONFIG_NAMES]
        for given in (*named, *node.args[:2]):
            value = self.bindings.value(given)
            if is_rules(value):
                self.lists.setdefault(value, []).extend(paths)

    def _read_import_module(self, node: ast.Call) -> None:
        called = ast.unparse(node.func).rpartition(".")[2]
        first = node.args[0] if node.args else None
        path = str(first.value) if isinstance(first, ast.Constant) else ""
        if called in ("import_module", "__import__") and path.partition(".")[0] == "nni":
            self.add_name(node.lineno, path)


def is_rules(node: ast.expr) -> TypeGuard[ast.List]:
    """Whether an expression is a list of dicts with keys of a config language."""
    if not isinstance(node, ast.List) or not node.elts:
        return False
    known = {*OLD_KEYS, *RULE_KEYS, *PRUNING_KEYS, *QUANTIZATION_KEYS}
    return all(isinstance(rule, ast.Dict) for rule in node.elts) and any(
        isinstance(key, ast.Constant) and key.value in known
        for rule in node.elts
        for key in getattr(rule, "keys", ())
    )


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(kind).rpartition(".")[2] in _CATCH_IMPORTS for kind in kinds)
