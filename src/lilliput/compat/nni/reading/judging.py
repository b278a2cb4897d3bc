"""Check whether the parts of NNI that a program uses run here, and find their current spelling.

The results come from the shim itself: a name is looked up as an import would, and the arguments of a
constructor are read by the same forms as at run time, with a placeholder for each value that is not a
literal.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lilliput.compat.nni.classes.arguments import Unknown, read_arguments
from lilliput.compat.nni.imports.names import children, explain_missing, find_name
from lilliput.compat.nni.imports.tables import FOR_TENSORFLOW, NAMES, PATHS, TODAY
from lilliput.compat.nni.reading.uses import CallUse, NameUse, split
from lilliput.errors import LilliputError, nearest

UNCHANGED = "runs unchanged"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one use: ``runs unchanged``, ``runs, spelled today …`` or ``not here: …``."""

    line: int
    name: str
    text: str
    runs: bool = True

    def __str__(self) -> str:
        return f"{self.line}: {self.name}: {self.text}"


def judge_name(use: NameUse) -> Verdict:
    """Return whether a name can be imported, and its current name."""
    shown = f"{use.module}.{use.name}" if use.name else use.module
    if not use.name or use.name in children(use.module):
        return Verdict(use.line, shown, UNCHANGED)
    found = find_name(use.module, use.name)
    reason = missing_reason(found)
    if found is None:
        reason = explain_missing(use.module, use.name).partition(" Available in ")[0]
        for start in ("is not here: ", "is not available: "):
            reason = reason.removeprefix(f"{shown} {start}")
    if reason and use.is_guarded:
        return Verdict(use.line, shown, f"not here, and the program goes on without it: {reason}")
    if reason:
        return Verdict(use.line, shown, f"not here: {reason}", runs=False)
    return Verdict(use.line, shown, _spelled(use.name, today_of(use.module, use.name)))


def missing_reason(found: Any) -> str:
    """Return the message of a class that replaces a missing one, or an empty string for one that works."""
    return str(getattr(found, "not_here", ""))


def today_of(module: str, name: str) -> str:
    """Return the name of a name of NNI in ``lilliput.torch`` or ``lilliput.keras``.

    Examples
    --------
    >>> today_of("nni.compression.torch", "L1FilterPruner"), today_of("nni", "trace")
    ('lilliput.torch.L1NormPruner', '')
    """
    found = find_name(module, name)
    is_tensorflow = any(name in NAMES[part] for part in FOR_TENSORFLOW & {*PATHS[module]})
    facade = "lilliput" if is_tensorflow else "lilliput.torch"
    cls = getattr(found, "adapts", None) or found
    for candidate in (TODAY.get(name, name), getattr(cls, "__name__", "")):
        if candidate in import_module(facade).__all__:
            return f"lilliput.{'keras' if is_tensorflow else 'torch'}.{candidate}"
    return ""


def _spelled(old: str, today: str) -> str:
    if not today:
        return UNCHANGED
    is_same = today.rpartition(".")[2] == old
    return f"{UNCHANGED}, today {today}" if is_same else f"runs, spelled today {today}"


def judge_call(use: CallUse) -> Iterator[Verdict]:
    """Return whether a call fits, for each class or function that may be called there."""
    for path in use.paths:
        module, name = split(path)
        found = find_name(module, name) if name else None
        if found is None or missing_reason(found):
            continue  # reported at the name
        members = [*path[len(module) + len(name) + 2 :].split("."), use.method]
        called = found
        for member in filter(None, members):
            name = f"{name}.{member}"
            called = getattr(called, member, None)
            if called is None:
                hint = nearest(member, dir(found))
                yield Verdict(
                    use.line, f"{name}()", f"not here: there is no such method.{hint}", False
                )
                break
        if called is not None:
            yield _judge_arguments(use, name, called, is_method=bool(use.method))


def _judge_arguments(use: CallUse, name: str, called: Any, is_method: bool) -> Verdict:
    args, kwargs = given_arguments(use.node)
    shown = f"{name}({', '.join(_as_written(use.node))})"
    try:
        today = constructor_of_today(called, args, kwargs)
        if today is None:
            _bind(called, args, kwargs, is_open(use.node), is_method)
            return Verdict(use.line, shown, UNCHANGED)
    except (LilliputError, TypeError) as error:
        first = str(error).splitlines()[0]
        return Verdict(use.line, shown, f"not here: {first}", runs=False)
    written = named_arguments(called, args, kwargs)
    spelled = f"{called.adapts.__name__}({', '.join(today)})"
    if spelled == f"{name}({', '.join(written)})":
        return Verdict(use.line, shown, UNCHANGED)
    loop = " and your own training loop" if _TRAINING & {*written} else ""
    return Verdict(use.line, shown, f"runs, spelled today {spelled}{loop}")


def given_arguments(node: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, with unknowns for those that are not literals."""
    args = tuple(_value(arg) for arg in node.args if not isinstance(arg, ast.Starred))
    return args, {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}


def _value(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return Unknown()
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return value if is_plain else Unknown()  # rules are judged separately


def is_open(node: ast.Call) -> bool:
    """Whether a call has arguments that are only known at run time."""
    starred = any(isinstance(arg, ast.Starred) for arg in node.args)
    return starred or any(word.arg is None for word in node.keywords)


def _as_written(node: ast.Call) -> list[str]:
    texts = [ast.unparse(arg) for arg in node.args]
    texts += [
        f"{word.arg}=…" if word.arg else f"**{ast.unparse(word.value)}" for word in node.keywords
    ]
    return [text if len(text) <= 24 else "…" for text in texts]


def constructor_of_today(
    called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Sequence[str] | None:
    """Return the arguments of the current constructor, or None if the class has one form only."""
    forms = getattr(called, "forms", ())
    if not forms:
        return None
    if len(args) == 1 and not kwargs and called.adapts is not None:
        return ["config_list"]  # of 2019 and 1.1: the model comes later
    stand_in = called.__new__(called)
    if stand_in._is_of_today(args, kwargs):
        return None
    given = read_arguments(called.__name__, forms, args, kwargs)
    bound = {name: _neutral(name, value) for name, value in given.items()}
    today = stand_in._translated(bound)
    if called.adapts is None:
        return None  # it has no constructor now
    defaults = inspect.signature(called.adapts).parameters
    return _in_order(
        [
            key
            for key, value in today.items()
            if key not in defaults or key in _POSITIONAL or defaults[key].default != value
        ]
    )


_POSITIONAL = ("model", "config_list", "optimizer")
_TRAINING = {"trainer=…", "evaluator=…", "finetuner=…"}


def _in_order(names: Sequence[str]) -> list[str]:
    """Return arguments in the order of writing: positional ones first."""
    first = [name for name in _POSITIONAL if name in names]
    return first + [f"{name}=…" for name in names if name not in first]


def _neutral(name: str, value: Any) -> Any:
    """Return an unknown mode as the usual one, because only a run knows it."""
    return "normal" if name == "mode" and isinstance(value, Unknown) else value


def named_arguments(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the arguments that a call names, in the order of its form."""
    if len(args) == 1 and not kwargs:
        return ["config_list"]
    given = read_arguments(called.__name__, called.forms, args, kwargs, with_defaults=False)
    return _in_order(list(given))


def _bind(
    called: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_partial: bool,
    is_method: bool,
) -> None:
    """Raise TypeError if the arguments do not fit the signature."""
    try:
        signature = inspect.signature(called)
    except ValueError:
        return  # of a built-in
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        # It passes its arguments to the current class.
        signature = inspect.signature(getattr(called, "adapts", None) or called)
    if is_method and inspect.isfunction(called):
        args = (Unknown(), *args)
    (signature.bind_partial if is_partial else signature.bind)(*args, **kwargs)
