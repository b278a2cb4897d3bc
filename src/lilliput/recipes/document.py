"""Read a recipe's file with the care that config files are read with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lilliput.config.files import BadFileError, parse_text, read_bytes
from lilliput.errors import ConfigError


def read_document(path: Path) -> tuple[Any, str]:
    """Return the plain values of a YAML or JSON file, and its text."""
    try:
        data = read_bytes(path)
        if not data.strip():
            raise ConfigError("is empty, expected a recipe.", title=os.fspath(path))
        return parse_text(data, path.suffix), data.decode("utf-8-sig")
    except BadFileError as error:
        raise ConfigError(str(error), title=os.fspath(path)) from error
