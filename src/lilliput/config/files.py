"""Config lists in YAML and JSON files, by the section of an algorithm; see :mod:`plain_text`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lilliput.config.plain_text import (
    BadFileError,
    check_suffix,
    dump,
    fail,
    kind_of,
    parse_text,
    plain_values,
    read_bytes,
)
from lilliput.errors import ConfigError, nearest
from lilliput.files import write_atomically

_LIST_KEYS = ("config_list", "config")
_PREFIXES = {"torch": ("torch",), "keras": ("tf", "keras")}


def read_rules(
    path: str | os.PathLike[str], section: Sequence[str] = (), framework: str = "torch"
) -> list[Any]:
    """Read the config list of a ``.yaml``, ``.yml`` or ``.json`` file.

    The file is a list of rules; or a mapping with that list under ``config_list`` or ``config``;
    or a mapping of sections named after algorithms, each with such a list.

    Parameters
    ----------
    path : str or path-like
        The file, UTF-8, at most 1 MiB.
    section : sequence of str
        The names of the algorithm. A section matches if its name is one of them, with or without
        the prefix of the framework, ignoring case, ``_`` and ``-``. If empty, the file must
        have exactly one section for this framework.
    framework : str
        ``"torch"`` or ``"keras"``. Sections with the prefix of another framework (``tf`` or
        ``keras``, ``torch``) do not match.

    Returns
    -------
    list
        The entries of the file, plain values only; they are not validated here.

    Raises
    ------
    ConfigError
        When the file cannot be read, is not well-formed, or has no list for this algorithm.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "agp.yaml")
    ...     _ = file.write_text("torchAGPruner:\\n  config:\\n    - {final_sparsity: 0.6}\\n")
    ...     read_rules(file, ["AGPruner", "agp"])
    [{'final_sparsity': 0.6}]
    """
    try:
        file = Path(path)
        value = parse_text(read_bytes(file), file.suffix)
        names = (section,) if isinstance(section, str) else section
        return _find_list(value, names, framework)
    except BadFileError as error:
        raise ConfigError(str(error), title=os.fspath(path)) from error


def read_rules_by_framework(
    path: str | os.PathLike[str], section: Sequence[str], frameworks: Sequence[str]
) -> dict[str, list[Any]]:
    """Read the config list of a file for each of several frameworks for which it has one.

    Raises
    ------
    ConfigError
        If it has none for any of them; the error is that of the first.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "agp.yaml")
    ...     _ = file.write_text("tfAGPruner:\\n  config:\\n    - {final_sparsity: 0.6}\\n")
    ...     read_rules_by_framework(file, ["AGPruner"], ["torch", "keras"])
    {'keras': [{'final_sparsity': 0.6}]}
    """
    found: dict[str, list[Any]] = {}
    errors: list[ConfigError] = []
    for framework in frameworks:
        try:
            found[framework] = read_rules(path, section, framework)
        except ConfigError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def write_rules(rules: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write a config list as YAML or JSON, depending on the suffix of ``path``.

    The file is replaced atomically, and only after checking that it reads back as ``rules``.

    Parameters
    ----------
    rules : sequence of mapping
        The config list, of plain values. Tuples are written as lists.
    path : str or path-like
        A file name that ends in ``.yaml``, ``.yml`` or ``.json``.

    Raises
    ------
    ConfigError
        If a value cannot be written exactly, or the suffix is unknown.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "rules.yaml")
    ...     write_rules([{"op_types": ["Linear"], "sparsity": 0.8}], file)
    ...     print(file.read_text())
    - op_types:
      - Linear
      sparsity: 0.8
    <BLANKLINE>
    """
    try:
        file = Path(path)
        check_suffix(file)
        if not isinstance(rules, (list, tuple)):
            fail(f"expected a list of rules to write, received {kind_of(rules)}")
        plain = plain_values(rules)
        data = dump(plain, file.suffix)
        if parse_text(data, file.suffix) != plain:
            fail(f"these rules cannot be written exactly as {file.suffix}; are all keys strings?")
    except BadFileError as error:
        raise ConfigError(str(error), title=os.fspath(path)) from error
    write_atomically(file, data)


def _find_list(value: Any, names: Sequence[str], framework: str) -> list[Any]:
    """Return the list of rules from one of the three forms of a file."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        fail(f"expected a list of rules at the top, received {kind_of(value)}")
    if any(key in value for key in _LIST_KEYS):
        return _list_of(value, "the file")
    key = _choose_section(value, names, framework)
    return _list_of(value[key], f"section {key!r}")


def _list_of(holder: Any, where: str) -> list[Any]:
    if isinstance(holder, dict):
        keys = [key for key in _LIST_KEYS if key in holder]
        if len(keys) > 1:
            fail(f"{where} has both 'config_list' and 'config'; keep one of them")
        if keys:
            holder, where = holder[keys[0]], f"{keys[0]!r} of {where}"
    if not isinstance(holder, list):
        fail(f"{where} holds {kind_of(holder)}, expected a list of rules")
    return holder


def _choose_section(value: dict[Any, Any], names: Sequence[str], framework: str) -> str:
    own = _PREFIXES.get(framework, (framework,))
    other = tuple(p for name, ps in _PREFIXES.items() if name != framework for p in ps)
    if names:
        keys = [key for key in value if isinstance(key, str)]
        wanted = {_fold(prefix + name) for name in names for prefix in ("", *own)}
        unwanted = {_fold(prefix + name) for name in names for prefix in other} - wanted
        fits = [key for key in keys if _fold(key) in wanted]
        foreign = [key for key in keys if _fold(key) in unwanted]
    else:
        keys = [key for key, held in value.items() if isinstance(key, str) and _has_rules(held)]
        foreign = [key for key in keys if _fold(key).startswith(other)]
        fits = [key for key in keys if key not in foreign]
    if len(fits) == 1:
        return fits[0]
    if fits:
        fail(f"sections {fits} all fit, expected one; remove the others")
    if foreign:
        prefix = next(p for p in other if _fold(foreign[0]).startswith(p))
        bare = foreign[0][len(prefix) :].lstrip("_-")
        fail(
            f"section {foreign[0]!r} is for another framework than {framework}; "
            f"name it {own[0] + bare!r}, or {bare!r} for all frameworks"
        )
    hint = next(filter(None, (nearest(key, names) for key in keys)), "")
    if {"op_types", "op_names", "sparsity", "quant_types"} & value.keys():
        hint = " This looks like one rule: make it the entry of a list."
    expected = f"a section named {names[0]!r}" if names else "one section with a list of rules"
    fail(f"expected {expected}, or a list of rules; the file has {list(value)[:20]}.{hint}")


def _has_rules(held: Any) -> bool:
    if isinstance(held, list):
        return all(isinstance(rule, dict) for rule in held)
    return isinstance(held, dict) and any(isinstance(held.get(key), list) for key in _LIST_KEYS)


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
