"""Find an algorithm by name: a dict, a decorator, and entry points for third-party packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from lilliput.errors import ConfigError, nearest
from lilliput.public import modules_in

Class = TypeVar("Class", bound=type)


def normalize(name: str) -> str:
    """Fold case and separators, so ``"AGP_Pruner"`` and ``"agp-pruner"`` are one name."""
    return re.sub(r"[\W_]+", "", name).lower()


class Registry:
    """Names and aliases of the algorithms of one kind.

    Parameters
    ----------
    kind : str
        What is registered: ``"pruner"``, ``"quantizer"`` or ``"factorizer"``. A name may omit it:
        ``get("level")`` finds ``LevelPruner``.
    group : str
        Entry-point group through which other packages add theirs; read on the first lookup.
    package : str
        The package of Lilliput's own algorithms, one module each; imported on the first lookup.

    Examples
    --------
    >>> pruners = Registry("pruner", "example.pruners")
    >>> @pruners.register("half")
    ... class HalfPruner: ...
    >>> pruners.get("half_pruner").__name__
    'HalfPruner'
    """

    def __init__(self, kind: str, group: str, package: str = "") -> None:
        self.kind = kind
        self.group = group
        self.package = package
        self._classes: dict[str, Any] = {}
        self._aliases: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._own_loaded = False
        self._plugins_loaded = False

    def register(self, name: str, *aliases: str) -> Callable[[Class], Class]:
        """Return a class decorator that registers the class under ``name``, its class name and aliases."""

        def enter(cls: Class) -> Class:
            if not cls.__module__.startswith(f"{self.package}."):
                self._load_own()  # so that their names are taken
            keys = {normalize(alias) for alias in (name, cls.__name__, *aliases)}
            held = self._classes.get(name)
            own = (
                name if held is None or _same_source(held, cls) else None
            )  # a cell that runs again
            taken = sorted(key for key in keys if self._aliases.get(key, own) != own)
            if taken:
                raise ConfigError(
                    f"{self.kind} name {taken[0]!r} is already taken; choose another."
                )
            self._classes[name] = cls
            self._aliases.update(dict.fromkeys(keys, name))
            return cls

        return enter

    def get(self, name: str) -> Any:
        """Return the class registered under ``name`` or an alias of it."""
        found = self._find(name)
        if found is None and normalize(name) in self._broken:
            reason = self._broken[normalize(name)]
            raise ConfigError(f"the {self.kind} {name!r} could not be loaded from {reason}")
        if found is None:
            hint = nearest(name, [*self._classes, *(c.__name__ for c in self._classes.values())])
            known = ", ".join(sorted(self._classes))
            raise ConfigError(f"no {self.kind} is called {name!r}.{hint} Known: {known}.")
        return self._classes[found]

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def names(self, pattern: str = "*") -> list[str]:
        """Return the sorted names that match a glob, such as ``names("*norm*")``."""
        self._load_plugins()
        return sorted(name for name in self._classes if fnmatchcase(name, pattern))

    def names_of(self, cls: type) -> list[str]:
        """Return every normalized name under which ``cls`` can be found."""
        names = [name for name, known in self._classes.items() if known is cls]
        return sorted(alias for alias, name in self._aliases.items() if name in names)

    def __iter__(self) -> Iterator[Any]:
        self._load_plugins()
        return iter(list(self._classes.values()))

    def _find(self, name: str) -> str | None:
        self._load_plugins()
        key = normalize(name)
        return self._aliases.get(key) or self._aliases.get(f"{key}{self.kind}")

    def _load_own(self) -> None:
        if not self._own_loaded:
            self._own_loaded = True
            for module in modules_in(self.package):
                import_module(module)

    def _load_plugins(self) -> None:
        self._load_own()
        if not self._plugins_loaded:
            self._plugins_loaded = True
            for plugin in entry_points(group=self.group):
                try:
                    self.register(plugin.name)(plugin.load())
                except Exception as error:
                    # One broken package must not stop the others; looking it up raises the reason.
                    self._broken[normalize(plugin.name)] = f"{plugin.value}: {error!r}"


def _same_source(one: Any, other: Any) -> bool:
    """Whether two classes are the same code, as when a notebook cell runs again."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


pruners = Registry("pruner", "lilliput.pruners", "lilliput.pruning")
quantizers = Registry("quantizer", "lilliput.quantizers", "lilliput.quantization")
factorizers = Registry("factorizer", "lilliput.factorizers", "lilliput.factorization")
REGISTRIES = (pruners, quantizers, factorizers)
register_pruner = pruners.register
register_quantizer = quantizers.register
register_factorizer = factorizers.register


def find_algorithm(name: str, others: Sequence[str] = ()) -> Any:
    """Return the class of an algorithm of any kind; the message names ``others`` as well if there is none.

    Examples
    --------
    >>> find_algorithm("ptq").__name__, find_algorithm("svd").__name__
    ('PTQQuantizer', 'SVDFactorizer')
    """
    for registry in REGISTRIES:
        if name in registry:
            return registry.get(name)
    known = [*(known for registry in REGISTRIES for known in registry.names()), *others]
    raise ConfigError(
        f"no algorithm is called {name!r}.{nearest(name, known)} Known: {', '.join(known)}."
    )
