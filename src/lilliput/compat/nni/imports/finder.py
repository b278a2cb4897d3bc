"""Install NNI's import paths, and remove them again without a trace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from lilliput.compat.nni.config.settings import forget_settings
from lilliput.compat.nni.imports.names import (
    UnavailableImportError,
    available,
    children,
    explain_missing,
    resolve,
)
from lilliput.compat.nni.imports.tables import PATHS
from lilliput.errors import StageError


class ShimModule(ModuleType):
    """A module of NNI whose names are looked up in Lilliput when they are used."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted({*available(self.__name__)} - {*children(self.__name__)})
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = resolve(self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *available(self.__name__)})


class ShimLoader(Loader):
    """Creates shim modules."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty shim module, whose names are looked up on use."""
        return ShimModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has no code."""


class ShimFinder(MetaPathFinder):
    """Finds the paths in the table, and keeps the modules that were replaced.

    ``from nni.x import Name`` looks here for ``nni.x.Name`` if the module has no such attribute,
    provided that ``nni.x`` is a package. So all shim modules are packages: this is the only place
    where such an import can raise our message.
    """

    def __init__(self, replaced: dict[str, ModuleType]) -> None:
        self.replaced = replaced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a shim module; for missing names below ``nni``, raise an explanation."""
        if fullname in PATHS:
            return ModuleSpec(fullname, ShimLoader(), origin="lilliput.compat.nni", is_package=True)
        parent, _, name = fullname.rpartition(".")
        if parent in PATHS:
            raise UnavailableImportError(explain_missing(parent, name), name=fullname)
        return None


def install(force: bool = False) -> None:
    """Make ``import nni`` and the paths below it lead to Lilliput, in this process.

    A second call does nothing.

    Parameters
    ----------
    force : bool
        Replace a real NNI that is installed or even imported; ``uninstall()`` restores it.

    Raises
    ------
    StageError
        If a real NNI is installed and ``force`` is not set.

    Examples
    --------
    >>> install(force=True)
    >>> from nni.compression.torch import LevelPruner
    >>> LevelPruner.__module__
    'lilliput.pruning.level'
    >>> uninstall()
    """
    if _installed():
        return
    found = _real_nni()
    if found and not force:
        raise StageError(
            f"the real NNI is {found}, and its users would get Lilliput's classes instead. Uninstall "
            "it (pip uninstall nni), or call install(force=True) to shadow it in this process."
        )
    replaced = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_nni(name)}
    sys.meta_path.insert(0, ShimFinder(replaced))


def uninstall() -> None:
    """Undo :func:`install`; does nothing if it was not called."""
    forget_settings()
    for finder in _installed():
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if _is_nni(name) and isinstance(module, ShimModule):
                del sys.modules[name]
        sys.modules.update(finder.replaced)


def _installed() -> list[ShimFinder]:
    return [finder for finder in sys.meta_path if isinstance(finder, ShimFinder)]


def _is_nni(name: str) -> bool:
    return name == "nni" or name.startswith("nni.")


def _real_nni() -> str:
    """Return where a real NNI is, or an empty string."""
    # Importing can be blocked by an entry that is None, which belongs to no package.
    module = sys.modules.get("nni")
    if module is not None:
        return f"imported already (from {getattr(module, '__file__', None) or 'memory'})"
    spec = None if "nni" in sys.modules else find_spec("nni")
    # A folder that happens to be called nni is a namespace package without an origin.
    return f"installed ({spec.origin})" if spec is not None and spec.origin else ""
