"""Restrict whose code a run folder may execute.

The folder of a run contains no code, but ``run.json`` names the factory of its model and the folder it was
imported from. Importing executes the code there, so an untrusted run must not choose it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lilliput.errors import StateError
from lilliput.recipes.checkpoint import ModelEntry


def factory_folders(entry: ModelEntry, place: Path, trust: bool) -> list[str]:
    """Return where to look for the factory of a run, besides the working directory.

    Parameters
    ----------
    entry : ModelEntry
        The model entry of ``run.json``.
    place : pathlib.Path
        The folder of the run, for messages.
    trust : bool
        Whether the user allows any folder.

    Raises
    ------
    StateError
        If the factory is in a folder that Python does not import from here.
    """
    recorded = Path(entry.folder)
    if trust or _resolved(recorded) in _importable():
        return [entry.folder]
    module = entry.factory.partition(":")[0].partition(".")[0]
    if not _holds(recorded, module):  # installed, or the project was moved
        return []
    raise StateError(
        f"{place}: its model is {entry.factory} of {recorded}, which is not the working directory; importing "
        "it would execute that code. Run from that folder, or allow it with --trust (trust=True)."
    )


def _importable() -> set[Path]:
    """Return the folders that Python imports from anyway."""
    return {_resolved(Path(folder)) for folder in ("", *sys.path)}


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except (OSError, ValueError):
        return folder


def _holds(folder: Path, module: str) -> bool:
    try:
        return any(path.name.partition(".")[0] == module for path in folder.iterdir())
    except (OSError, ValueError):  # there is no such folder
        return False
