"""Problems of a recipe: the key, and the line in its file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str | int, ...]  # from the top of a document to one of its values


@dataclass(frozen=True)
class Fault:
    """A location in the recipe, as keys and indices, and the problem there.

    Examples
    --------
    >>> Fault(("steps", 0, "config", 1, "sparsity"), "received 80.").where
    'step 1 → config → rule 1 → sparsity'
    """

    place: KeyPath
    message: str

    @property
    def where(self) -> str:
        """The location in readable form; steps count from 1, rules from 0 as everywhere."""
        parts = list(self.place)
        if parts[:1] == ["steps"] and len(parts) > 1 and isinstance(parts[1], int):
            parts[:2] = [f"step {parts[1] + 1}"]
        if parts[1:2] == ["config"] and len(parts) > 2 and isinstance(parts[2], int):
            parts[2] = f"rule {parts[2]}"
        return " → ".join(str(part) for part in parts)


def find_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each key and entry, by its path; JSON is read as YAML.

    Examples
    --------
    >>> find_lines("seed: 1\\nsteps:\\n  - speedup: {}\\n")[("steps", 0, "speedup")]
    3
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False
    try:
        root = yaml.compose(io.StringIO(text.removeprefix("\ufeff")))
    except YAMLError:  # JSON that YAML reads differently has no lines
        return {}
    lines: dict[KeyPath, int] = {}
    _walk(root, (), lines, set())
    return lines


def line_of(place: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of a location, or of the nearest enclosing one."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)


def _walk(node: Any, place: KeyPath, lines: dict[KeyPath, int], seen: set[int]) -> None:
    if id(node) in seen:  # an alias: its lines are those of the anchor
        return
    seen.add(id(node))
    kind = getattr(node, "id", "")
    if kind == "mapping":
        for key, value in node.value:
            inner = (*place, str(key.value))
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines, seen)
    elif kind == "sequence":
        for index, value in enumerate(node.value):
            inner = (*place, index)
            lines[inner] = value.start_mark.line + 1
            _walk(value, inner, lines, seen)
