"""The user's functions that a command line names as ``module:function``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from lilliput.errors import ConfigError


def load_function(reference: str, what: str) -> Callable[..., Any]:
    """Return the function named by ``module:function``; ``what`` is for messages."""
    from lilliput.recipes.references import resolve_function

    return resolve_function(reference, what)


def optional_function(reference: str | None, what: str) -> Callable[..., Any] | None:
    """Load the function, if there is a reference to one."""
    return None if reference is None else load_function(reference, what)


def call_user(reference: str, what: str) -> Any:
    """Call the function named by ``module:function``; raise if it needs arguments."""
    function = load_function(reference, what)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(
            f"{what}: {reference} is called without arguments, but has a {error}; expected a function "
            "without required arguments."
        ) from None
    except ValueError:  # a function written in C has no signature
        pass
    return function()
