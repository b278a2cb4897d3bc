"""Config lists in files: their algorithm, and whether they are valid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lilliput.errors import ConfigError, Problem

_RECIPE_KEYS = {"lilliput", "steps", "model"}


def is_recipe(file: Path) -> bool:
    """Whether a file contains a recipe instead of a config list."""
    from lilliput.recipes.load import read_document

    value, _ = read_document(file)
    return isinstance(value, dict) and bool(_RECIPE_KEYS & value.keys())


def check_rules(file: Path, algorithm: str | None) -> tuple[int, list[str]]:
    """Return how many rules a file has, and the algorithms that accept them; raise if there is none."""
    from lilliput.core.binding import names_of
    from lilliput.registry import REGISTRIES, find_algorithm

    if algorithm is not None:
        cls = find_algorithm(algorithm)
        framework, rules = _read(file, names_of(cls))
        problems = _problems(rules, framework, cls)
        if problems:
            raise ConfigError(problems, title=f"{file} as a config list of {algorithm}")
        return len(rules), [algorithm]
    framework, rules = _read(file, [])
    found = {
        name: _problems(rules, framework, registry.get(name))
        for registry in REGISTRIES
        for name in registry.names()
    }
    fits = [name for name, problems in found.items() if not problems]
    if not fits:
        best = min(found, key=lambda name: len(found[name]))
        title = f"{file} (read as a config list of {best}; --algorithm chooses another)"
        raise ConfigError(found[best], title=title)
    return len(rules), fits


def _read(file: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    """Return the framework that a file has rules for, and the rules."""
    from lilliput.config.files import read_rules_by_framework

    return next(iter(read_rules_by_framework(file, names, ["torch", "keras"]).items()))


def _problems(rules: list[Any], framework: str, cls: Any) -> list[Problem]:
    from lilliput.config.parse import parse_rules

    return parse_rules(rules, cls.rule, cls.__name__, (), framework).problems


def to_yaml(rules: list[dict[str, Any]]) -> str:
    """Return rules as YAML.

    Examples
    --------
    >>> print(to_yaml([{"op_types": ["Linear"], "sparsity": 0.8}]))
    - op_types:
      - Linear
      sparsity: 0.8
    """
    import tempfile

    from lilliput.config.files import write_rules

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rules.yaml")
        write_rules(rules, file)
        return file.read_text(encoding="utf-8").rstrip()
