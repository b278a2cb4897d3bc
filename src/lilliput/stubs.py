"""Write the ``.pyi`` files that declare the public names for type checkers: ``python -m lilliput.stubs``."""

from __future__ import annotations

from pathlib import Path

from lilliput.public import ALL, TOP, homes_of


def stub_of(module: str) -> str:
    """Return the declarations of a public module for type checkers.

    Examples
    --------
    >>> "from lilliput.pruning.level import LevelPruner as LevelPruner" in stub_of("lilliput")
    True
    """
    homes = sorted((home, name) for name, home in homes_of(module).items())
    lines = [f"from {home} import {name} as {name}" for home, name in homes]
    if module == TOP:
        lines += ["", "__version__: str"]
    return "\n".join(["# Written by python -m lilliput.stubs.", *lines, ""])


def stub_path(module: str) -> Path:
    """Return the file in which type checkers look for a public module."""
    return Path(__file__).with_name(f"{'__init__' if module == TOP else module[9:]}.pyi")


if __name__ == "__main__":
    for public in ALL:
        stub_path(public).write_text(stub_of(public), encoding="utf-8")
