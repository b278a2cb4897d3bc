"""Config lists in files: whose they are, and whether they are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lilliput.errors import ConfigError, Problem, nearest

_RECIPE_KEYS = {"lilliput", "steps", "model"}


def is_recipe(file: Path) -> bool:
    """Whether a file holds a recipe rather than a config list."""
    from lilliput.recipes.load import read_document

    value, _ = read_document(file)
    return isinstance(value, dict) and bool(_RECIPE_KEYS & value.keys())


def class_of(name: str, extra: Sequence[str] = ()) -> Any:
    """Return the pruner or quantizer of a name, whichever has it."""
    import lilliput.algorithms  # noqa: F401  (they register when they are imported)
    from lilliput.registry import pruners, quantizers

    for registry in (pruners, quantizers):
        if name in registry:
            return registry.get(name)
    known = [*pruners.names(), *quantizers.names(), *extra]
    raise ConfigError(
        f"no algorithm is called {name!r}.{nearest(name, known)} Known: {', '.join(known)}."
    )


def check_rules(file: Path, algorithm: str | None) -> tuple[int, list[str]]:
    """Return how many rules a file has, and the algorithms that take them; raise if there is none."""
    from lilliput.core.binding import names_of
    from lilliput.registry import pruners, quantizers

    if algorithm is not None:
        cls = class_of(algorithm)
        framework, rules = _read(file, names_of(cls))
        problems = _problems(rules, framework, cls)
        if problems:
            raise ConfigError(problems, title=f"{file} as a config list of {algorithm}")
        return len(rules), [algorithm]
    class_of("level")  # so that all are registered
    framework, rules = _read(file, [])
    found = {
        name: _problems(rules, framework, registry.get(name))
        for registry in (pruners, quantizers)
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
