"""The command ``lilliput``; what it can do is described in docs/cli.md and by ``lilliput --help``."""

from lilliput.cli.entry import main as main

__all__ = ["main"]
