"""The interface of a target: its name, requirements, writer and runtime.

A new target is one file in this folder with a subclass of :class:`Target`, and its line in ``table.py``.
Recipes, the command line, ``open_file``, ``doctor`` and receipts find it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lilliput.errors import ConfigError

if TYPE_CHECKING:
    from lilliput.export.targets.executed import ExecutedFile


@dataclass(frozen=True)
class Package:
    """A package that a target uses, as shown by ``lilliput doctor``.

    Parameters
    ----------
    name : str
        Its name on the package index.
    purpose : str
        Its purpose.
    extra : str
        The extra of Lilliput that installs it.
    module : str
        Its module name, if different.
    """

    name: str
    purpose: str
    extra: str
    module: str = ""

    @property
    def imported_as(self) -> str:
        """The name of its module."""
        return self.module or self.name


@dataclass(frozen=True)
class Writer:
    """The function that writes the models of one framework to this format.

    Parameters
    ----------
    framework : str
        ``"torch"`` or ``"keras"``.
    function : str
        ``module:function``, called as ``function(compressor_or_model, path, example_inputs, **options)``;
        it returns an ``ExportResult``.
    modules : tuple of str
        The modules required to write and execute a file.
    extra : str
        The extras of Lilliput that install these, as in ``pip install 'lilliput[extra]'``.
    """

    framework: str
    function: str
    modules: tuple[str, ...]
    extra: str

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, _, name = self.function.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found


class Target:
    """One kind of file, and the runtime that executes it. Importing its module imports no framework."""

    name: ClassVar[str]  # in recipes and on the command line
    title: ClassVar[str]  # for display
    suffix: ClassVar[str]
    runtime: ClassVar[str]  # which of ``ExportResult.runtimes`` the file is for
    file: ClassVar[type[ExecutedFile]]  # a file in its runtime
    writers: ClassVar[tuple[Writer, ...]]
    packages: ClassVar[tuple[Package, ...]]
    # Options that a recipe may pass to the writer; example_inputs, calibration and the path are set
    # by it.
    options: ClassVar[tuple[str, ...]]
    # Tensors that must be quantized for integer kernels; empty: the quantizers' defaults.
    quant_types: ClassVar[tuple[str, ...]] = ()

    def open(self, path: Path, threads: int) -> ExecutedFile:
        """Open a file in its runtime."""
        return self.file(path, threads)

    def find_writer(self, framework: str) -> Writer | None:
        """Return the writer for a framework's models, or None if there is none."""
        return next((x for x in self.writers if x.framework == framework), None)

    def writer(self, framework: str) -> Writer:
        """Return the writer for a framework's models, or raise if there is none."""
        found = self.find_writer(framework)
        if found is None:
            from lilliput.export.targets.table import targets_of

            able = " or ".join(_FRAMEWORKS[writer.framework] for writer in self.writers)
            others = " or ".join(target.name for target in targets_of(framework))
            raise ConfigError(
                f"export: {self.title} files are written from {able} models; use export: {others} "
                "for this one."
            )
        return found


_FRAMEWORKS = {"torch": "PyTorch", "keras": "Keras"}
