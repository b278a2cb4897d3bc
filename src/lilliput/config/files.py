"""Config lists in YAML and JSON files: read safely, and written so that they read back the same.

A config file comes from anywhere, so nothing in it runs code, and its size, nesting and aliases are
bounded before anything is built from it.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lilliput.errors import ConfigError, nearest
from lilliput.files import write_atomically

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_ALIASES = 100
MAX_NODES = 20_000  # of YAML, which takes a second or two to read that many
# More than a file of MAX_BYTES can contain; reached only by nested aliases.
MAX_VALUES = 1_000_000

_YAML_SUFFIXES = (".yaml", ".yml")
_SUFFIXES = (*_YAML_SUFFIXES, ".json")
_LIST_KEYS = ("config_list", "config")
_PREFIXES = {"torch": ("torch",), "keras": ("tf", "keras")}
_TAG = "tag:yaml.org,2002:"
_YAML_TAGS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map")}


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
        _check_suffix(file)
        if not isinstance(rules, (list, tuple)):
            _fail(f"expected a list of rules to write, received {_kind(rules)}")
        plain = _plain(rules)
        data = dump(plain, file.suffix)
        if parse_text(data, file.suffix) != plain:
            _fail(f"these rules cannot be written exactly as {file.suffix}; are all keys strings?")
    except BadFileError as error:
        raise ConfigError(str(error), title=os.fspath(path)) from error
    write_atomically(file, data)


class BadFileError(Exception):
    """The problem of a file, before its name is added."""


def _fail(message: str) -> NoReturn:
    raise BadFileError(message if message.endswith(("?", ".")) else f"{message}.")


def _check_suffix(file: Path) -> None:
    if file.suffix.lower() not in _SUFFIXES:
        _fail(f"expected a name that ends in {', '.join(_SUFFIXES)}, received {file.suffix!r}")


def read_bytes(file: Path) -> bytes:
    """Return the content of a YAML or JSON file, limited to what a config list needs."""
    try:
        if file.is_dir():
            _fail("is a folder, expected a YAML or JSON file")
        _check_suffix(file)
        # A pipe or a device is rejected before it is opened, because opening one can block forever.
        if not file.is_file():
            there = file.parent.iterdir() if file.parent.is_dir() else ()
            _fail(f"there is no such file.{nearest(file.name, [other.name for other in there])}")
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        _fail(f"cannot be read: {error}")
    return data


def parse_text(data: bytes, suffix: str) -> Any:
    """Parse the bytes of a file into plain values."""
    if len(data) > MAX_BYTES:
        _fail(f"is larger than {MAX_BYTES >> 20} MiB, which no config list needs")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _fail(f"line {line}: is not UTF-8 (byte {data[error.start]:#04x})")
    if not text.strip():
        _fail("is empty, expected a list of rules")
    value = _parse_yaml(text) if suffix.lower() in _YAML_SUFFIXES else _parse_json(text)
    return _plain(value)


def _parse_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                _fail(f"duplicate key {key!r}; keep one of them")
            result[key] = value
        return result

    def refuse(constant: str) -> NoReturn:
        _fail(f"{constant} is not a number that JSON or a rule can represent")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        _fail(f"line {error.lineno}, column {error.colno}: {error.msg}")
    except RecursionError:
        _fail(f"is nested deeper than {MAX_DEPTH} levels")
    except ValueError as error:  # an integer of thousands of digits
        _fail(str(error))


def _parse_yaml(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        _check_events(YAML(typ="safe", pure=True).parse(io.StringIO(text)))
        yaml = YAML(typ="safe", pure=True)
        yaml.composer.warn_double_anchors = False  # reusing an anchor's name is valid YAML
        value = yaml.load(io.StringIO(text))
    except BadFileError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        _fail(f"{where}{error.problem or error.context}")
    except (YAMLError, RecursionError) as error:
        _fail(str(error).strip().splitlines()[0])
    except Exception as error:  # for malformed scalars ruamel raises all kinds of errors
        _fail(f"is not valid YAML ({type(error).__name__}: {error})")
    if value is None:
        _fail("is empty, expected a list of rules")
    return value


def _check_events(events: Iterable[Any]) -> None:
    """Reject what would be costly or dangerous to build, while it is still a stream of tokens."""
    from ruamel.yaml import events as ev

    depth = aliases = nodes = 0
    anchors = set()
    for event in events:
        nodes += isinstance(event, ev.NodeEvent)
        if nodes > MAX_NODES:
            _fail(
                f"has more than {MAX_NODES:,} names and values; select layers by patterns such as "
                "'encoder.*', or write it as JSON, which is read faster"
            )
        line = f"line {event.start_mark.line + 1}"
        tag = str(getattr(event, "tag", None) or "")
        if isinstance(event, ev.AliasEvent):
            aliases += 1
            if event.anchor not in anchors:
                _fail(
                    f"{line}: put quotes around '*{event.anchor}', YAML reads a bare * as an alias"
                )
            if aliases > MAX_ALIASES:
                _fail(f"{line}: has more than {MAX_ALIASES} aliases")
        elif getattr(event, "anchor", None) is not None:
            anchors.add(event.anchor)
        if isinstance(event, (ev.SequenceStartEvent, ev.MappingStartEvent)):
            depth += 1
            if depth > MAX_DEPTH:
                _fail(f"{line}: is nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, (ev.SequenceEndEvent, ev.MappingEndEvent)):
            depth -= 1
        elif isinstance(event, ev.DocumentStartEvent) and event.version not in (None, (1, 2)):
            _fail(f"{line}: only YAML 1.2 is read, remove the %YAML directive")
        elif isinstance(event, ev.ScalarEvent) and event.value == "<<" and event.implicit[0]:
            # Lists of merged mappings can grow exponentially, and YAML 1.2 has no merge key.
            _fail(f"{line}: merge keys ('<<') are not part of YAML 1.2, write the keys out")
        if tag.startswith("!") and tag != "!":
            _fail(f"{line}: put quotes around {tag!r}, YAML reads a bare ! as a tag")
        elif tag not in ("", "!", *_YAML_TAGS):
            _fail(f"{line}: tag {tag.replace(_TAG, '!!')!r} is not allowed, write a plain value")


def _plain(value: Any) -> Any:
    """Copy a value, rejecting all but plain finite data; no parts of the copy are shared."""
    left = MAX_VALUES

    def copy(part: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            _fail(f"holds more than {MAX_VALUES} values once its aliases are followed")
        if not isinstance(part, (Mapping, list, tuple)):
            return _scalar(part)
        if depth > MAX_DEPTH:
            _fail(f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(part, Mapping):
            return {_scalar(key): copy(item, depth + 1) for key, item in part.items()}
        return [copy(item, depth + 1) for item in part]

    return copy(value, 1)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    # Subclasses, such as string enums, become the plain value that they equal.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _fail(f"holds {value}, expected a number")
    _fail(f"holds {_kind(value)}, expected text, numbers, true, false, lists and mappings")


def _kind(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, datetime.date):
        return f"the date {value} (put it in quotes if it is a name)"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def dump(plain: Any, suffix: str) -> bytes:
    """Return plain values as YAML or JSON, depending on the suffix."""
    try:
        if suffix.lower() not in _YAML_SUFFIXES:
            return (json.dumps(plain, indent=2) + "\n").encode()
        return _dump_yaml(plain)
    except ValueError as error:  # an integer of thousands of digits
        _fail(str(error))


def _dump_yaml(plain: Any) -> bytes:
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        def represent_text(self, text: str) -> Any:
            # ruamel leaves some Unicode line breaks unescaped except in double quotes.
            style = None if text.isprintable() else '"'
            return self.represent_scalar(f"{_TAG}str", text, style=style)

    Representer.add_representer(str, Representer.represent_text)
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = MAX_BYTES
    stream = io.BytesIO()
    yaml.dump(plain, stream)
    return stream.getvalue()


def _find_list(value: Any, names: Sequence[str], framework: str) -> list[Any]:
    """Return the list of rules from one of the three forms of a file."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        _fail(f"expected a list of rules at the top, received {_kind(value)}")
    if any(key in value for key in _LIST_KEYS):
        return _list_of(value, "the file")
    key = _choose_section(value, names, framework)
    return _list_of(value[key], f"section {key!r}")


def _list_of(holder: Any, where: str) -> list[Any]:
    if isinstance(holder, dict):
        keys = [key for key in _LIST_KEYS if key in holder]
        if len(keys) > 1:
            _fail(f"{where} has both 'config_list' and 'config'; keep one of them")
        if keys:
            holder, where = holder[keys[0]], f"{keys[0]!r} of {where}"
    if not isinstance(holder, list):
        _fail(f"{where} holds {_kind(holder)}, expected a list of rules")
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
        _fail(f"sections {fits} all fit, expected one; remove the others")
    if foreign:
        prefix = next(p for p in other if _fold(foreign[0]).startswith(p))
        bare = foreign[0][len(prefix) :].lstrip("_-")
        _fail(
            f"section {foreign[0]!r} is for another framework than {framework}; "
            f"name it {own[0] + bare!r}, or {bare!r} for all frameworks"
        )
    hint = next(filter(None, (nearest(key, names) for key in keys)), "")
    if {"op_types", "op_names", "sparsity", "quant_types"} & value.keys():
        hint = " This looks like one rule: make it the entry of a list."
    expected = f"a section named {names[0]!r}" if names else "one section with a list of rules"
    _fail(f"expected {expected}, or a list of rules; the file has {list(value)[:20]}.{hint}")


def _has_rules(held: Any) -> bool:
    if isinstance(held, list):
        return all(isinstance(rule, dict) for rule in held)
    return isinstance(held, dict) and any(isinstance(held.get(key), list) for key in _LIST_KEYS)


def _fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
