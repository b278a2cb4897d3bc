"""The results of a search so far, in one file that is replaced atomically: a killed search can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lilliput.errors import StateError
from lilliput.files import TEMPORARY, remove_stale, write_atomically

NAME = "search.json"
_FORMAT = 1


class Journal:
    """Results by name; entries are on disk before the search continues.

    Parameters
    ----------
    folder : Path
        The folder of the file.
    made_from : mapping
        What the results depend on; a folder of another search is an error.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Journal(Path(folder), {"model": "a"}).note("scores", [1.0])
    ...     Journal(Path(folder), {"model": "a"}).get("scores")
    [1.0]
    """

    def __init__(self, folder: Path, made_from: Mapping[str, Any]) -> None:
        self.path = folder / NAME
        # As read back from JSON: tuples become lists.
        self.made_from = json.loads(json.dumps(dict(made_from)))
        self.findings: dict[str, Any] = {}
        remove_stale(
            folder, TEMPORARY, seconds=0.0
        )  # one search per folder: a killed one left them
        if self.path.exists():
            self.findings = self._load()

    def get(self, name: str) -> Any:
        """Return a result, or None if it is not there yet."""
        return self.findings.get(name)

    def note(self, name: str, value: Any) -> None:
        """Add a result."""
        self.findings[name] = value
        content = {"format": _FORMAT, "made_from": self.made_from, "findings": self.findings}
        write_atomically(self.path, json.dumps(content, indent=1).encode())

    def _load(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            made_from, findings = content["made_from"], dict(content["findings"])
            is_known = content["format"] == _FORMAT
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(
                f"{self.path}: not the journal of a search ({error!r}); choose another folder."
            ) from error
        if not is_known:
            raise StateError(f"{self.path}: written by another version; choose another folder.")
        differing = [k for k in self.made_from if made_from.get(k) != self.made_from[k]]
        if differing:
            seeded = " A loader that shuffles has to be seeded." if "data" in differing else ""
            raise StateError(
                f"{self.path}: this search was started with different {', '.join(differing)}; choose another "
                f"folder, or remove this one to start over.{seeded}"
            )
        return findings
