"""Write files so that a crash leaves the old file or the new one, never half of either."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to ``path`` in one step: readers see all of it or the previous file.

    The bytes go to a hidden temporary file beside the target, are forced to disk, and the temporary
    file is renamed over the target. An existing file keeps its permissions; a symbolic link stays
    a link and the file behind it is replaced.

    Parameters
    ----------
    path : str or path-like
        The file to create or replace; its folder must exist.
    data : bytes
        The whole new content.

    Raises
    ------
    OSError
        When the file cannot be written. The old file is then intact and no temporary file is left.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder, "rules.json"), b"[]")
    ...     Path(folder, "rules.json").read_bytes()
    b'[]'
    """
    target = Path(os.path.realpath(path))
    # Cut, because the name with its suffix must fit into the 255 bytes that file systems allow.
    temporary = target.with_name(f".{target.name[:48]}.{secrets.token_hex(8)}")
    # Unlike tempfile.mkstemp, this gives a new file the permissions that the umask asks for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Force the rename itself to disk, where the system can."""
    # Windows cannot open folders and some network file systems refuse to sync them. The new file
    # is complete and in place by now, so reporting a failure would be wrong.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
