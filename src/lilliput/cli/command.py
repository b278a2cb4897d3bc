"""Turn a function into a command: with the common options, and clean exits."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer

from lilliput.cli.terminal import Terminal
from lilliput.errors import LilliputError


class InterruptedByUserError(Exception):
    """Ctrl-C; the exit code and how to resume are reported by the group."""


class UserExitError(LilliputError):
    """A user's function called ``sys.exit()``."""


def command(
    app: typer.Typer, name: str, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register ``function(terminal, …)`` under a name; its docstring is the help text.

    A parameter whose type is a dataclass represents all of its fields: each becomes an option, and
    the function gets the dataclass. So do the options of :class:`~lilliput.cli.terminal.Terminal`.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())
        groups = {p.name: hints[p.name] for p in parameters if _is_group(hints[p.name])}

        @functools.wraps(function)
        def call(**given: Any) -> None:
            taken = {name: _take(given, cls) for name, cls in groups.items()}
            terminal = Terminal(**taken.pop("terminal"))
            with terminal.working():
                _orderly(lambda: function(terminal, **_make(groups, taken), **given))

        single = [
            p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name])
            for p in parameters
            if p.name not in groups
        ]
        grouped = [
            option for cls in (*list(groups.values())[1:], Terminal) for option in _fields(cls)
        ]
        call.__signature__ = inspect.Signature([*single, *grouped])  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in (*single, *grouped)}
        app.command(name, rich_help_panel=panel)(call)
        return function

    return register


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _fields(cls: Any) -> list[inspect.Parameter]:
    """Return the options that a dataclass represents."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(cls)
        if field.init
    ]


def _take(given: dict[str, Any], cls: Any) -> dict[str, Any]:
    """Take the options of a dataclass out of the given ones."""
    return {field.name: given.pop(field.name) for field in dataclasses.fields(cls) if field.init}


def _make(groups: dict[str, Any], taken: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: groups[name](**values) for name, values in taken.items()}


def _orderly(task: Callable[[], None]) -> None:
    try:
        task()
    except KeyboardInterrupt as error:
        raise InterruptedByUserError from error
    except SystemExit as error:
        raise UserExitError(
            f"one of your functions called sys.exit({error.code!r}); return from it, or raise an error."
        ) from error
