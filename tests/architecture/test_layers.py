"""Who imports whom, lazy imports counted: a stage imports no framework, a framework imports no stage.

They meet in plain data and in the protocols of ``frameworks``.
"""

import ast
from pathlib import Path

import lilliput

ROOT = Path(lilliput.__file__).parent
STAGES = {
    *("config", "ops", "charts", "graph", "core", "pruning", "quantization", "distillation"),
    *("factorization", "speedup", "recovery", "compact", "measure", "export", "search", "report"),
    *("recipes", "cli", "integrations", "testing"),
}
# What a framework may know of: errors, files and names at the top, plain data, numerics, protocols.
BELOW = {"config", "ops", "graph"}
OTHERS = {"torch", "keras", "tensorflow", "jax"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


NAMES = {name for name, _ in modules()}


def imports_of(path):
    """Yield what a module imports at any time, but for its annotations."""
    waiting = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            own = node.module.removeprefix("lilliput").removeprefix(".")
            for alias in node.names:
                inner = f"{own}.{alias.name}".lstrip(".")
                is_module = node.module.startswith("lilliput") and inner in NAMES
                yield f"lilliput.{inner}" if is_module else node.module
        waiting += ast.iter_child_nodes(node)


def part_of(name):
    """Return the part of the package a module belongs to: a folder, a framework, or 'top'."""
    folder, _, rest = name.partition(".")
    if folder == "frameworks" and rest.partition(".")[0] in OTHERS:
        return f"frameworks.{rest.partition('.')[0]}"
    return folder if (ROOT / folder).is_dir() else name if name in OTHERS else "top"


def is_crossing(part, other):
    """Whether an import from one part to another breaks the rule."""
    if part in STAGES or part == "frameworks":
        return other in OTHERS or other.startswith("frameworks.")
    if part.startswith("frameworks."):
        foreign = other.startswith("frameworks.") and other != part
        return foreign or other in STAGES - BELOW
    return False


def crossings():
    for name, path in modules():
        part = part_of(name)
        for target in set(imports_of(path)):
            head, _, own = target.partition(".")
            other = part_of(own) if head == "lilliput" and own else head
            if is_crossing(part, other):
                yield f"{name} -> {other}"


def test_a_stage_imports_no_framework_and_a_framework_no_stage():
    assert sorted(set(crossings())) == []


def test_the_rule_can_be_broken():
    assert is_crossing("core", "torch") and is_crossing("speedup", "frameworks.torch")
    assert is_crossing("frameworks.torch", "core") and not is_crossing("frameworks.torch", "ops")
    assert not is_crossing("frameworks.torch", "torch") and not is_crossing("compat", "core")
    assert is_crossing("frameworks.keras", "frameworks.torch")


def folder_cycles():
    """Return the folders from which imports lead back to where they began."""
    edges = {}
    for name, path in modules():
        for target in imports_of(path):
            head, _, own = target.partition(".")
            if head == "lilliput" and own and not own.startswith("compat"):  # see test_imports.py
                edges.setdefault(part_of(name), set()).add(part_of(own))
    folders = {x for x in edges if x != "top" and x not in OTHERS}
    reached = {x: edges[x] & folders for x in folders}
    for _ in folders:
        reached = {
            x: found.union(*(reached[y] for y in found)) if found else found
            for x, found in reached.items()
        }
    return {
        frozenset(y for y in reached[x] if x in reached[y] and y != x) | {x}
        for x in folders
        if any(x in reached[y] for y in reached[x] - {x})
    }


def test_no_folders_import_each_other():
    assert folder_cycles() == set()
