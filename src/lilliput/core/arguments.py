"""Constructors that pass arguments on to a base class by ``**kwargs``.

These hide what may be passed. A ``TypedDict`` tells type checkers and editors the
names, and :func:`passes_on` tells ``help()``, recipes and everything else that reads signatures. What is not
in the signature is refused, even if the base class would take it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def passes_on(arguments: Any, to: type) -> Callable[[Constructor], Constructor]:
    """Show the arguments that a constructor passes on in its signature, and refuse others.

    Parameters
    ----------
    arguments : type
        The ``TypedDict`` of what is passed on, as in ``**kwargs: Unpack[arguments]``.
    to : type
        The class whose constructor receives them; their order and defaults are taken from it.

    Examples
    --------
    >>> class Scheduled:
    ...     def __init__(self, model=None, *, groups=None, options=None): ...
    >>> from typing import TypedDict
    >>> class Arguments(TypedDict, total=False):
    ...     groups: Any
    >>> class Seeded(Scheduled):
    ...     @passes_on(Arguments, to=Scheduled)
    ...     def __init__(self, model=None, *, seed=0, **kwargs): ...
    >>> inspect.signature(Seeded)
    <Signature (model=None, *, seed=0, groups=None)>
    """
    names = {name for base in arguments.__mro__ for name in getattr(base, "__annotations__", {})}

    def show(constructor: Constructor) -> Constructor:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        own = inspect.signature(constructor)
        kept = [x for x in own.parameters.values() if x.kind not in kinds]
        received = inspect.signature(to.__init__).parameters.values()  # type: ignore[misc]
        shown = [x for x in received if x.name in names and x.name not in own.parameters]
        # Sorting is stable: new arguments come before passed-on ones, positional arguments first.
        parameters = sorted([*kept, *shown], key=lambda x: x.kind)
        signature = own.replace(parameters=parameters)

        @functools.wraps(constructor)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            if (
                type(self).__init__ is checked
            ):  # subclasses may set more of the base class themselves
                signature.bind(self, *args, **kwargs)
            constructor(self, *args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return cast("Constructor", checked)

    return show
