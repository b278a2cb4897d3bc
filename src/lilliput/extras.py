"""Optional packages: import them, or say how to install them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from lilliput.errors import MissingExtraError


def require(name: str, message: str) -> Any:
    """Import an optional module and return it.

    An error inside an installed package, such as a missing shared library or a folder that shadows
    it, is passed on unchanged.

    Parameters
    ----------
    name : str
        The module.
    message : str
        What to install, for the error.

    Raises
    ------
    MissingExtraError
        If the package is not installed.

    Examples
    --------
    >>> require("openvino_", "this needs pip install 'lilliput[openvino]'")
    Traceback (most recent call last):
        ...
    lilliput.errors.MissingExtraError: this needs pip install 'lilliput[openvino]'
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(message) from error


def is_installed(name: str) -> bool:
    """Whether a package could be imported, without importing it.

    Examples
    --------
    >>> is_installed("json"), is_installed("openvino_")
    (True, False)
    """
    try:
        return find_spec(name) is not None
    except ValueError:  # a module that was created by hand and has no spec
        return True


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed.

    Examples
    --------
    >>> list(versions_of(["numpy", "openvino_"]))
    ['numpy']
    """
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
