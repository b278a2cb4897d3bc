"""lilliput.files: after any failure the old file is intact and nothing else is left."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lilliput.errors import LilliputError, WriteError
from lilliput.files import STALE_SECONDS, make_folder, write_atomically


def test_a_new_file_holds_exactly_the_data(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new.bin", b"\r\n\x00\xff")
    assert (tmp_path / "new.bin").read_bytes() == b"\r\n\x00\xff"


def test_a_string_is_a_path_too(tmp_path: Path) -> None:
    write_atomically(str(tmp_path / "new.bin"), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["new.bin"]


def test_a_relative_path_is_written_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("here.bin", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["here.bin"]


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_keeps_the_old_file_and_leaves_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException
) -> None:
    target = tmp_path / "state.bin"
    target.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(type(error)):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.bin"]


def test_the_new_content_is_on_disk_before_it_gets_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def record(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            calls.append(name)
            function(*args)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, record(name, getattr(os, name)))
    write_atomically(tmp_path / "a.bin", b"x")
    assert calls[:2] == ["fsync", "replace"]
    if os.name == "posix":
        assert calls == ["fsync", "replace", "fsync"]


def test_the_temporary_file_is_hidden_and_beside_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    replace = os.replace

    def record(source: Path, target: Path) -> None:
        seen.append(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    for _ in range(2):
        write_atomically(tmp_path / "a.bin", b"x")
    assert all(path.parent == tmp_path and path.name.startswith(".a.bin.") for path in seen)
    assert seen[0] != seen[1]


def test_a_folder_that_cannot_be_synced_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError("not supported")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    write_atomically(tmp_path / "a.bin", b"x")
    assert (tmp_path / "a.bin").read_bytes() == b"x"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_an_existing_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    target.chmod(mode)
    write_atomically(target, b"new")
    assert stat.S_IMODE(target.stat().st_mode) == mode


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "atomic", b"")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.skipif(os.name != "posix", reason="symbolic links of POSIX")
def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "a.bin", tmp_path / "link.bin"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_folder_as_target_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        WriteError, match="No such file or directory; nothing was written"
    ) as caught:
        write_atomically(tmp_path / "missing" / "a.bin", b"x")
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.ENOENT


def test_the_longest_file_name_can_be_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("n" * 255), b"x")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"x"


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    contents = [bytes([value]) * 200_000 for value in (1, 2)]
    write_atomically(target, contents[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(40):
            write_atomically(target, contents[turn % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert target.read_bytes() in contents
    writer.join()


def test_a_disk_without_room_is_an_error_of_ours_that_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "state.bin"
    target.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        LilliputError, match="No space left on device; the previous content"
    ) as caught:
        write_atomically(target, b"new")
    assert caught.value.errno == errno.ENOSPC  # type: ignore[attr-defined]
    assert target.read_bytes() == b"old"


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(WriteError, match="taken is a file; expected the name of a folder"):
        make_folder(tmp_path / "taken")
    with pytest.raises(WriteError, match="cannot be created"):
        make_folder(tmp_path / "taken" / "below")
    assert (tmp_path / "taken").read_bytes() == b"mine"


WRITER = """
import os, sys, time
import lilliput.files as files
def wait(descriptor):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = wait
files.write_atomically(sys.argv[1], b"never finished")
"""


def start_a_writer_that_never_ends(target: Path) -> subprocess.Popen[bytes]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
    (temporary,) = target.parent.glob(".*.lilliput")
    old = time.time() - 2 * STALE_SECONDS
    os.utime(temporary, (old, old))
    return writer


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_temporary_files_of_killed_writers_are_removed_but_not_those_of_living_ones(
    tmp_path: Path,
) -> None:
    writer = start_a_writer_that_never_ends(tmp_path / "a.bin")
    try:
        write_atomically(tmp_path / "b.bin", b"x")
        assert len(list(tmp_path.glob(".*.lilliput"))) == 1  # old, but its writer lives
    finally:
        writer.kill()
        writer.communicate()
    write_atomically(tmp_path / "b.bin", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["b.bin"]


def test_recent_temporary_files_and_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    kept = [".a.bin.0123456789abcdef.lilliput", ".a.bin.0123456789abcdef", ".hidden", "lilliput"]
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    for name in kept[1:]:
        os.utime(tmp_path / name, (0, 0))
    write_atomically(tmp_path / "b.bin", b"x")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "b.bin"}
