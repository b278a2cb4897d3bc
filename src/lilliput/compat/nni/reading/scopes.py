"""Resolve the names of a program from its source: modules, classes and objects of NNI.

Nothing is executed. A name that is bound to several things refers to all of them, and one that is
bound to anything else (a parameter, a loop variable, another library's object) refers to nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_MAKES = ".from_compressor"  # a class method that returns an object of the class


@dataclass(frozen=True)
class Meaning:
    """A dotted path of NNI; an object is the result of calling it."""

    path: str
    is_object: bool = False


@dataclass(eq=False)
class Scope:
    """The names of a module or a function: import paths, assigned expressions, or None for the rest."""

    parent: Scope | None = None
    names: dict[str, list[str | tuple[ast.expr, Scope] | None]] = field(default_factory=dict)

    def bind(self, name: str, value: str | tuple[ast.expr, Scope] | None) -> None:
        """Add another binding of a name."""
        self.names.setdefault(name, []).append(value)

    def find(self, name: str) -> list[str | tuple[ast.expr, Scope] | None]:
        """Return all bindings of a name in the innermost scope that binds it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return []


class Bindings(ast.NodeVisitor):
    """Collects all bindings, and resolves what an expression refers to.

    Parameters
    ----------
    tree : ast.Module
        A parsed program.

    Examples
    --------
    >>> tree = ast.parse("import nni.compression.torch as t\\nmake = t.LevelPruner\\npruner = make(1, 2)")
    >>> Bindings(tree).meanings(tree.body[2].targets[0])
    [Meaning(path='nni.compression.torch.LevelPruner', is_object=True)]
    """

    def __init__(self, tree: ast.Module) -> None:
        self.scope = self.top = Scope()
        self.scopes: dict[ast.AST, Scope] = {}  # of each expression and statement
        self.attributes: dict[str, list[tuple[ast.expr, Scope]]] = {}  # self.x = …, by their text
        self.stars: list[str] = []
        self._asked: set[tuple[ast.AST, int]] = set()
        self._assigned: set[ast.AST] = set()
        self.visit(tree)

    # -- queries -----------------------------------------------------------------------------------

    def meanings(self, node: ast.expr) -> list[Meaning]:
        """Return what an expression refers to; empty if it is, or may be, anything but NNI's."""
        found = self._meanings(node, self.scopes.get(node, self.top))
        known = [meaning for meaning in found if meaning is not None]
        return list(dict.fromkeys(known)) if len(known) == len(found) else []

    def value(self, node: ast.expr) -> ast.expr:
        """Return the expression that a name was assigned, if it is the only one; otherwise the node."""
        if isinstance(node, ast.Name):
            bound = self.scopes.get(node, self.top).find(node.id)
            if len(bound) == 1 and isinstance(bound[0], tuple):
                return self.value(bound[0][0]) if bound[0][0] is not node else node
        return node

    def _meanings(self, node: ast.expr, scope: Scope) -> list[Meaning | None]:
        key = (node, id(scope))
        if key in self._asked:  # x = x.y
            return [None]
        self._asked.add(key)
        try:
            return list(self._read(node, scope))
        finally:
            self._asked.discard(key)

    def _read(self, node: ast.expr, scope: Scope) -> Iterator[Meaning | None]:
        if isinstance(node, ast.Name):
            yield from self._of_name(node.id, scope)
        elif isinstance(node, ast.Attribute):
            assigned = self.attributes.get(ast.unparse(node), [])
            for value, home in assigned:
                yield from self._meanings(value, home)
            for meaning in () if assigned else self._meanings(node.value, scope):
                is_path = meaning is not None and not meaning.is_object
                yield Meaning(f"{meaning.path}.{node.attr}") if meaning and is_path else None
        elif isinstance(node, ast.Call):
            for meaning in self._meanings(node.func, scope):
                is_path = meaning is not None and not meaning.is_object
                made = meaning.path.removesuffix(_MAKES) if meaning and is_path else ""
                yield Meaning(made, True) if made else None
        elif isinstance(node, ast.IfExp):
            yield from self._meanings(node.body, scope)
            yield from self._meanings(node.orelse, scope)
        elif isinstance(node, ast.NamedExpr):
            yield from self._meanings(node.value, scope)
        else:
            yield None

    def _of_name(self, name: str, scope: Scope) -> Iterator[Meaning | None]:
        bound = scope.find(name)
        for value in bound:
            if isinstance(value, str):
                yield Meaning(value)
            elif value is None:
                yield None
            else:
                yield from self._meanings(*value)
        if not bound:
            homes = [f"{path}.{name}" for path in self.stars]
            yield from map(Meaning, homes) if homes else [None]

    # -- reading ---------------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        """Record the scope of a node, and visit it."""
        self.scopes[node] = self.scope
        super().visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """Bind ``import a.b`` as ``a`` and ``import a.b as c`` as ``c``."""
        for alias in node.names:
            top = alias.name.partition(".")[0]
            path = alias.name if alias.asname else top
            self.scope.bind(alias.asname or top, path if top == "nni" else None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Bind each name; a star binds all names of the module."""
        module = node.module or ""
        is_nni = node.level == 0 and module.partition(".")[0] == "nni"
        for alias in node.names:
            if alias.name != "*":
                path = f"{module}.{alias.name}" if is_nni else None
                self.scope.bind(alias.asname or alias.name, path)
            elif is_nni:
                self.stars.append(module)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Bind each target to the expression."""
        for target in node.targets:
            self._bind(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Bind ``x: T = value``."""
        if node.value is not None:
            self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Bind ``(x := value)``."""
        self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """Bind targets of loops, ``with``, ``del`` and similar to nothing known."""
        if not isinstance(node.ctx, ast.Load) and node not in self._assigned:
            self.scope.bind(node.id, None)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Bind the class itself to nothing of NNI: it belongs to the program."""
        self.scope.bind(node.name, None)
        for part in (*node.bases, *node.keywords, *node.decorator_list):
            self.visit(part)
        outer, self.scope = self.scope, Scope(self.scope)
        for statement in node.body:
            self.visit(statement)
        self.scope = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Give a function its own names, of which its parameters are unknown."""
        self.scope.bind(node.name, None)
        for part in node.decorator_list:
            self.visit(part)
        self._visit_body(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """As for a function."""
        self._visit_body(node)

    def _visit_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(default)
        outer, self.scope = self.scope, Scope(self.scope)
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        for parameter in (*every, *filter(None, (arguments.vararg, arguments.kwarg))):
            self.scope.bind(parameter.arg, None)
        body = node.body if isinstance(node.body, list) else [node.body]
        for statement in body:
            self.visit(statement)
        self.scope = outer

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.scope.bind(target.id, (value, self.scope))
            self._assigned.add(target)
        elif isinstance(target, ast.Attribute):
            self.attributes.setdefault(ast.unparse(target), []).append((value, self.scope))
