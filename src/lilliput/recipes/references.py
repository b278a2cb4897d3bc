"""Resolve ``module:function``, and report what is wrong with it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lilliput.errors import ConfigError, nearest
from lilliput.frames import is_code_of
from lilliput.recipes.step_specs import is_reference

_MOST = 8  # names listed in a message


@contextlib.contextmanager
def importable(folders: Iterable[str | Path]) -> Iterator[None]:
    """Make modules in these folders importable, the first folder first."""
    added = [str(Path(folder).resolve()) for folder in folders]
    before = list(sys.path)
    sys.path[:0] = [folder for folder in dict.fromkeys(added) if folder not in sys.path]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def resolve(text: str, what: str, folders: Iterable[str | Path] = ()) -> Any:
    """Return the object named by ``module:name``; the working directory is importable.

    Parameters
    ----------
    text : str
        The module, a colon, and a name in it, with dots for attributes of other objects.
    what : str
        Its purpose, for messages: ``'model'``.
    folders : iterable of path, optional
        Other folders to search for the module, such as that of the recipe.

    Examples
    --------
    >>> resolve("math:sqrt", "data")(9)
    3.0
    >>> resolve("math:sqr", "data")
    Traceback (most recent call last):
        ...
    lilliput.errors.ConfigError: data: module 'math' has no 'sqr'. Did you mean 'sqrt'?
    """
    if not isinstance(text, str) or not is_reference(text):
        raise ConfigError(f"{what}: received {text!r}, expected module:function.")
    name, _, path = text.partition(":")
    with importable([*folders, Path.cwd()]):
        found: Any = _import(name, what, [*folders, Path.cwd()])
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            owner = f"module {name!r}" if inspect.ismodule(found) else f"{found!r}"
            hint = nearest(part, _public(found)) or _functions(found)
            raise ConfigError(f"{what}: {owner} has no {part!r}.{hint}") from None
    return found


def resolve_function(
    text: str, what: str, folders: Iterable[str | Path] = ()
) -> Callable[..., Any]:
    """As :func:`resolve`; raise if the object is not callable."""
    found = resolve(text, what, folders)
    if not callable(found):
        raise ConfigError(f"{what}: {text} is a {type(found).__name__}, expected a function.")
    return found  # type: ignore[no-any-return]


def _import(name: str, what: str, folders: list[str | Path]) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"{what}: importing {name!r} failed: {_place(error)}") from error
        hint = nearest(name, _modules(folders))
        raise ConfigError(
            f"{what}: there is no module {name!r} in the working directory, next to the recipe or "
            f"installed.{hint}"
        ) from error
    except Exception as error:  # any error of the user's module on import
        raise ConfigError(f"{what}: importing {name!r} failed: {_place(error)}") from error
    except SystemExit as error:
        raise ConfigError(
            f"{what}: importing {name!r} ended the program; put the code it runs under if __name__ == "
            "'__main__'."
        ) from error


def _place(error: BaseException) -> str:
    """Return an error with its line."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}."
    frames = [x for x in traceback.extract_tb(error.__traceback__) if not _imports(x.filename)]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if len(frames) > 1 else ""
    return f"{where}{type(error).__name__}: {error}"


def _imports(filename: str) -> bool:
    """Whether code is Python's own import system."""
    return filename.startswith("<frozen importlib") or is_code_of(filename, importlib)


def _modules(folders: list[str | Path]) -> list[str]:
    """Return the modules in folders."""
    there = [path for folder in folders if Path(folder).is_dir() for path in Path(folder).iterdir()]
    packages = [path.name for path in there if (path / "__init__.py").is_file()]
    return [*packages, *(path.stem for path in there if path.suffix == ".py")]


def _functions(found: Any) -> str:
    """Return the functions of a user's module, if no name is similar.

    Examples
    --------
    >>> resolve("lilliput.calling:batches", "data")
    Traceback (most recent call last):
        ...
    lilliput.errors.ConfigError: data: module 'lilliput.calling' has no 'batches'. It has: call.
    """
    if not inspect.ismodule(found):
        return ""
    names = [
        name
        for name, value in vars(found).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", "") == found.__name__
    ]
    more = ", …" if len(names) > _MOST else ""
    return f" It has: {', '.join(names[:_MOST])}{more}." if names else " It has no functions."


def _public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]
