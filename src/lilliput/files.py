"""Write files so that a crash leaves the old file or the new one, never half of either."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from lilliput.errors import WriteError

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.lilliput")
# No writer is known to need this long between two of its files, or between two writes to one.
STALE_SECONDS = 3600.0
_LOCK_SECONDS = 10.0


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to ``path`` atomically: readers see all of it or the previous file.

    The bytes are written to a hidden temporary file next to the target and synced to disk, and the temporary
    file is renamed over the target. An existing file keeps its permissions; a symbolic link stays
    a link and the file behind it is replaced. Temporary files that killed processes left in the
    folder are removed.

    Parameters
    ----------
    path : str or path-like
        The file to create or replace; its folder must exist.
    data : bytes
        The whole new content.

    Raises
    ------
    WriteError
        When the file cannot be written; also an ``OSError``. The old file is then intact and no
        temporary file is left.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder, "rules.json"), b"[]")
    ...     Path(folder, "rules.json").read_bytes()
    b'[]'
    """
    target = Path(os.path.realpath(path))
    try:
        _replace(target, data)
    except OSError as error:
        what = "the previous content is intact" if target.exists() else "nothing was written"
        text = f"{os.fspath(path)} cannot be written: {error.strerror or error}; {what}."
        raise WriteError(text, error) from error
    _sync_folder(target.parent)
    remove_stale(target.parent, TEMPORARY)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder and its parents, if necessary, and return its path."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        text = f"{os.fspath(path)} is a file; expected the name of a folder."
        raise WriteError(text, error) from error
    except OSError as error:
        text = f"the folder {os.fspath(path)} cannot be created: {error.strerror or error}."
        raise WriteError(text, error) from error
    return Path(path)


def remove_stale(
    folder: Path, pattern: re.Pattern[str], keep: str = "", seconds: float = STALE_SECONDS
) -> None:
    """Remove files that match ``pattern`` and that no running process can still be writing.

    These are files at least an hour old and, if the system has locks, without a lock. If files
    belong to one process at a time, the lock is sufficient, and fewer seconds may be given.
    """
    with contextlib.suppress(OSError):  # cleaning up must never be what fails
        for entry in os.scandir(folder):
            if pattern.fullmatch(entry.name) and entry.name != keep:
                with contextlib.suppress(OSError):
                    if _is_stale(entry, STALE_SECONDS if os.name == "nt" else seconds):
                        Path(entry.path).unlink()


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Serialize processes that write several files of one folder.

    Without locks, or if another process holds the lock for long, this continues without it: the files are
    still valid, but an unreferenced file may be left.
    """
    descriptor = None
    try:
        with contextlib.suppress(OSError):  # Windows cannot open folders
            descriptor = os.open(folder, os.O_RDONLY)
        end = time.monotonic() + _LOCK_SECONDS
        while descriptor is not None and not _lock(descriptor) and time.monotonic() < end:
            time.sleep(0.02)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _replace(target: Path, data: bytes) -> None:
    # Shortened, because the name with its suffix must fit into the 255 bytes that file systems
    # allow.
    name = f".{target.name[:48]}.{secrets.token_hex(8)}.lilliput"
    temporary = target.with_name(name)
    # Unlike tempfile.mkstemp, this gives a new file the permissions of the umask.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666)
    # The lock lasts as long as one of the two descriptors: until the file has its name.
    held = os.dup(descriptor) if _lock(descriptor) else None
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
    finally:
        if held is not None:
            os.close(held)


def _is_stale(entry: os.DirEntry[str], seconds: float) -> bool:
    if not entry.is_file(follow_symlinks=False):
        return False
    if time.time() - entry.stat(follow_symlinks=False).st_mtime < seconds:
        return False
    descriptor = os.open(entry.path, os.O_RDONLY)
    try:
        return _lock(descriptor) or os.name == "nt"
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open file without waiting; False if it is locked, or if there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


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
