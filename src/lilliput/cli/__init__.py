"""The command ``lilliput``, described in docs/cli.md and by ``lilliput --help``."""

from lilliput.cli.entry import main as main

__all__ = ["main"]
