"""Plain values as YAML or JSON: parsed safely, and written so that they read back the same.

A config file comes from anywhere, so nothing in it runs code, and its size, nesting and aliases are
bounded before anything is built from it.
"""

from __future__ import annotations

import datetime
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from lilliput.errors import nearest

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_ALIASES = 100
MAX_NODES = 20_000  # of YAML, which takes a second or two to read that many
# More than a file of MAX_BYTES can contain; reached only by nested aliases.
MAX_VALUES = 1_000_000

_YAML_SUFFIXES = (".yaml", ".yml")
_SUFFIXES = (*_YAML_SUFFIXES, ".json")
_TAG = "tag:yaml.org,2002:"
_YAML_TAGS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map")}


class BadFileError(Exception):
    """The problem of a file, before its name is added."""


def fail(message: str) -> NoReturn:
    """Raise the problem of a file, as a sentence."""
    raise BadFileError(message if message.endswith(("?", ".")) else f"{message}.")


def check_suffix(file: Path) -> None:
    """Raise if a file name ends in neither YAML nor JSON."""
    if file.suffix.lower() not in _SUFFIXES:
        fail(f"expected a name that ends in {', '.join(_SUFFIXES)}, received {file.suffix!r}")


def read_bytes(file: Path) -> bytes:
    """Return the content of a YAML or JSON file, limited to what a config list needs."""
    try:
        if file.is_dir():
            fail("is a folder, expected a YAML or JSON file")
        check_suffix(file)
        # A pipe or a device is rejected before it is opened, because opening one can block forever.
        if not file.is_file():
            there = file.parent.iterdir() if file.parent.is_dir() else ()
            fail(f"there is no such file.{nearest(file.name, [other.name for other in there])}")
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        fail(f"cannot be read: {error}")
    return data


def parse_text(data: bytes, suffix: str) -> Any:
    """Parse the bytes of a file into plain values."""
    if len(data) > MAX_BYTES:
        fail(f"is larger than {MAX_BYTES >> 20} MiB, which no config list needs")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fail(f"line {line}: is not UTF-8 (byte {data[error.start]:#04x})")
    if not text.strip():
        fail("is empty, expected a list of rules")
    value = _parse_yaml(text) if suffix.lower() in _YAML_SUFFIXES else _parse_json(text)
    return plain_values(value)


def _parse_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                fail(f"duplicate key {key!r}; keep one of them")
            result[key] = value
        return result

    def refuse(constant: str) -> NoReturn:
        fail(f"{constant} is not a number that JSON or a rule can represent")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        fail(f"line {error.lineno}, column {error.colno}: {error.msg}")
    except RecursionError:
        fail(f"is nested deeper than {MAX_DEPTH} levels")
    except ValueError as error:  # an integer of thousands of digits
        fail(str(error))


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
        fail(f"{where}{error.problem or error.context}")
    except (YAMLError, RecursionError) as error:
        fail(str(error).strip().splitlines()[0])
    except Exception as error:  # for malformed scalars ruamel raises all kinds of errors
        fail(f"is not valid YAML ({type(error).__name__}: {error})")
    if value is None:
        fail("is empty, expected a list of rules")
    return value


def _check_events(events: Iterable[Any]) -> None:
    """Reject what would be costly or dangerous to build, while it is still a stream of tokens."""
    from ruamel.yaml import events as ev

    depth = aliases = nodes = 0
    anchors = set()
    for event in events:
        nodes += isinstance(event, ev.NodeEvent)
        if nodes > MAX_NODES:
            fail(
                f"has more than {MAX_NODES:,} names and values; select layers by patterns such as "
                "'encoder.*', or write it as JSON, which is read faster"
            )
        line = f"line {event.start_mark.line + 1}"
        tag = str(getattr(event, "tag", None) or "")
        if isinstance(event, ev.AliasEvent):
            aliases += 1
            if event.anchor not in anchors:
                fail(
                    f"{line}: put quotes around '*{event.anchor}', YAML reads a bare * as an alias"
                )
            if aliases > MAX_ALIASES:
                fail(f"{line}: has more than {MAX_ALIASES} aliases")
        elif getattr(event, "anchor", None) is not None:
            anchors.add(event.anchor)
        if isinstance(event, (ev.SequenceStartEvent, ev.MappingStartEvent)):
            depth += 1
            if depth > MAX_DEPTH:
                fail(f"{line}: is nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, (ev.SequenceEndEvent, ev.MappingEndEvent)):
            depth -= 1
        elif isinstance(event, ev.DocumentStartEvent) and event.version not in (None, (1, 2)):
            fail(f"{line}: only YAML 1.2 is read, remove the %YAML directive")
        elif isinstance(event, ev.ScalarEvent) and event.value == "<<" and event.implicit[0]:
            # Lists of merged mappings can grow exponentially, and YAML 1.2 has no merge key.
            fail(f"{line}: merge keys ('<<') are not part of YAML 1.2, write the keys out")
        if tag.startswith("!") and tag != "!":
            fail(f"{line}: put quotes around {tag!r}, YAML reads a bare ! as a tag")
        elif tag not in ("", "!", *_YAML_TAGS):
            fail(f"{line}: tag {tag.replace(_TAG, '!!')!r} is not allowed, write a plain value")


def plain_values(value: Any) -> Any:
    """Copy a value, rejecting all but plain finite data; no parts of the copy are shared."""
    left = MAX_VALUES

    def copy(part: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            fail(f"holds more than {MAX_VALUES} values once its aliases are followed")
        if not isinstance(part, (Mapping, list, tuple)):
            return _scalar(part)
        if depth > MAX_DEPTH:
            fail(f"is nested deeper than {MAX_DEPTH} levels")
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
        return float(value) if math.isfinite(value) else fail(f"holds {value}, expected a number")
    fail(f"holds {kind_of(value)}, expected text, numbers, true, false, lists and mappings")


def kind_of(value: Any) -> str:
    """Return the type of a value with its article, for messages."""
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
        fail(str(error))


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
