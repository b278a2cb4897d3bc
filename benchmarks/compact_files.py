"""Measure the size and speed of compact files: ``save(model, path, compact=True)``.

    ./run python benchmarks/compact_files.py [lenet control sparsevd large]

``lenet`` trains LeNet-300-100 on a third of Fashion-MNIST, prunes it to the densities that SparseVD
published, quantizes its weights to codebooks of 4 bits and trains those, and compares the file with xz
and zlib of the same codes. ``control`` trains the network for as many epochs without compression.
``sparsevd`` does the same as ``lenet`` with random weights at these densities, where only border pixels
are special. ``large`` times 26 million weights. Sizes are of whole files, including header, tables and
biases.
"""

from __future__ import annotations

import argparse
import lzma
import tempfile
import time
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import fashion_mnist
from record import RESULTS, read_json, write_json
from torch import nn

from lilliput.compact.format import decode, encode
from lilliput.compact.tensors import Stored
from lilliput.torch import AGPPruner, CodebookQuantizer, load, save

SPARSITIES = {"0": 0.989, "2": 0.972, "4": 0.62}  # Molchanov et al. 2017, LeNet-300-100
BITS, BIAS_BITS = 4, 6
IMAGES = 20_000
DENSE_EPOCHS, PRUNING_EPOCHS, SHARING_EPOCHS = 3, 10, 2
DENSE_BYTES = 266_610 * 4


def lenet() -> nn.Sequential:
    sizes = (784, 300, 100, 10)
    layers = [nn.Linear(one, two) for one, two in pairwise(sizes)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def train(model: nn.Module, data: Any, optimizer: Any, epochs: int, compressor: Any = None) -> None:
    images, labels = data
    for epoch in range(epochs):
        if compressor is not None:
            compressor.update_epoch(epoch + 1)
        for rows in torch.randperm(len(images)).split(128):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def accuracy(model: nn.Module, data: Any) -> float:
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).float().mean())


def split() -> list[Any]:
    """Return the images and labels for training and testing."""
    return [
        (images[:IMAGES].reshape(-1, 784).float() / 255, labels[:IMAGES])
        for images, labels in fashion_mnist()
    ]


def control() -> dict[str, Any]:
    """Return the accuracy of the same network after as many epochs as the pruned one."""
    torch.manual_seed(0)
    train_data, test_data = split()
    model = lenet()
    for rate, epochs in ((1e-3, DENSE_EPOCHS + PRUNING_EPOCHS), (2e-4, SHARING_EPOCHS)):
        train(model, train_data, torch.optim.Adam(model.parameters(), rate), epochs)
    epochs = DENSE_EPOCHS + PRUNING_EPOCHS + SHARING_EPOCHS
    return {"epochs": epochs, "accuracy": accuracy(model, test_data)}


def trained_lenet() -> dict[str, Any]:
    """Return sizes and accuracies of a network that is trained, pruned and clustered here."""
    torch.manual_seed(0)
    train_data, test_data = split()
    model = lenet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    train(model, train_data, optimizer, DENSE_EPOCHS)
    dense = accuracy(model, test_data)
    rules = [
        {"op_names": [name], "final_sparsity": sparsity, "start_epoch": 0, "end_epoch": 7}
        for name, sparsity in SPARSITIES.items()
    ]
    pruner = AGPPruner(model, rules, optimizer)
    pruner.compress()
    train(model, train_data, optimizer, PRUNING_EPOCHS, pruner)
    pruned = accuracy(model, test_data)
    tuned = torch.optim.Adam(model.parameters(), 2e-4)
    CodebookQuantizer(model, [{"quant_bits": BITS}], tuned).compress()
    clustered = accuracy(model, test_data)
    train(model, train_data, tuned, SHARING_EPOCHS)
    row = sizes_of(model)
    shared = {"dense": dense, "pruned": pruned, "clustered": clustered}
    loaded = row.pop("loaded")
    return {
        **row,
        "accuracy": {
            **shared,
            "trained": accuracy(model, test_data),
            "file": accuracy(loaded, test_data),
        },
    }


def random_lenet() -> dict[str, Any]:
    """Return sizes for random masks and Laplacian codes at SparseVD's densities, with dead border pixels."""
    rng = np.random.default_rng(0)
    model = lenet()
    alive = np.zeros((28, 28), bool)
    alive[4:24, 4:24] = True
    for name, sparsity in SPARSITIES.items():
        weight = model[int(name)].weight
        shape = tuple(weight.shape)
        places = np.flatnonzero(
            np.tile(alive.ravel(), (shape[0], 1)) if name == "0" else np.ones(shape)
        )
        kept = rng.choice(places, round((1 - sparsity) * weight.numel()), replace=False)
        codes = np.zeros(weight.numel(), np.float32)
        levels = np.clip(np.round(rng.laplace(scale=2.0, size=len(kept))), -7, 7)
        codes[kept] = np.where(levels == 0, rng.choice([-1, 1], len(kept)), levels)
        table = np.sort(rng.standard_normal(15)).astype(np.float32)  # as a codebook: not a grid
        values = np.where(codes == 0, 0, table[codes.astype(int) + 7])
        with torch.no_grad():
            weight.copy_(torch.from_numpy(values.astype(np.float32)).reshape(shape))
    row = sizes_of(model)
    del row["loaded"]
    return row


def sizes_of(model: nn.Module) -> dict[str, Any]:
    """Return the bytes of the compact file, and those of other coders for the weights' codes alone."""
    weights = [model[i].weight.detach().numpy() for i in (0, 2, 4)]
    codes = [codes_of(weight) for weight in weights]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lenet.lil"
        start = time.process_time()
        size = save(model, path, compact=True, bias_bits=BIAS_BITS)
        written = time.process_time()
        loaded = load(lenet(), path)
        read = time.process_time()
    held = [loaded[i].weight.detach().numpy() for i in (0, 2, 4)]
    if not all(np.array_equal(one, two) for one, two in zip(weights, held, strict=True)):
        raise RuntimeError("the file does not reproduce the weights")
    alone = encode({f"{i}": Stored.of(code) for i, code in enumerate(codes)})
    flat = np.concatenate([code.ravel() for code in codes])
    # One byte per code, or half a byte.
    packed = [flat.tobytes(), ((flat[::2] & 15) << 4 | flat[1::2] & 15).astype(np.uint8).tobytes()]
    strongest = 9 | lzma.PRESET_EXTREME
    xz = [len(lzma.compress(data, preset=strongest)) for data in packed]
    row = {
        "nonzeros": int(np.count_nonzero(flat)),
        "file_bytes": size,
        "times_smaller": DENSE_BYTES / size,
        "codes": {
            "ours": len(alone),
            "entropy": round(sum(map(entropy_bytes, codes))),
            "xz": min(xz),
            "xz_of_bytes": xz[0],
            "xz_of_halves": xz[1],
            "zlib": min(len(zlib.compress(data, 9)) for data in packed),
        },
        "smaller_than_xz": 1 - len(alone) / min(xz),
        "cpu_seconds": {"save": written - start, "load": read - written},
    }
    return {**row, "loaded": loaded}


def codes_of(weight: np.ndarray) -> np.ndarray:
    """Return the index of each weight among its values: 1, 2, … above zero, -1, -2, … below, 0 for zero."""
    values = np.unique(weight)
    return (np.searchsorted(values, weight) - np.searchsorted(values, 0)).astype(np.int8)


def entropy_bytes(codes: np.ndarray) -> float:
    """Return the bytes of codes if only their frequencies are known."""
    counts = np.unique(codes, return_counts=True)[1]
    return float((counts * np.log2(counts.sum() / counts)).sum()) / 8


def large() -> dict[str, Any]:
    """Return bits and seconds for 8-bit layers: 26 million weights, and 2.4 million with a fifth nonzero."""
    rng = np.random.default_rng(0)
    return {
        "dense": timed(rng, layers=11, density=1.0),
        "sparse": timed(rng, layers=1, density=0.2),
    }


def timed(rng: np.random.Generator, layers: int, density: float) -> dict[str, Any]:
    tensors = {}
    for number in range(layers):
        weight = rng.standard_normal((512, 512, 3, 3), np.float32)
        scale = np.abs(weight).max((1, 2, 3), keepdims=True) / np.float32(127)
        rounded = np.round(weight / scale) * scale * (rng.random(weight.shape) < density)
        tensors[f"layer{number}.weight"] = Stored.of(rounded + np.float32(0))
    count = sum(stored.bits.size for stored in tensors.values())
    start = time.process_time()
    data = encode(tensors)
    written = time.process_time()
    found = decode(data).tensors
    read = time.process_time()
    if not all((found[name].bits == stored.bits).all() for name, stored in tensors.items()):
        raise RuntimeError("the file does not reproduce the weights")
    return {
        "weights": count,
        "bits_per_weight": 8 * len(data) / count,
        "cpu_seconds": {"encode": written - start, "decode": read - written},
    }


PARTS = {"lenet": trained_lenet, "control": control, "sparsevd": random_lenet, "large": large}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all without")
    torch.set_num_threads(1)
    path = RESULTS / "compact_files.json"
    earlier = read_json(path)
    record = {name: earlier[name] for name in PARTS if name in earlier}
    for name in parser.parse_args().parts or PARTS:
        record[name] = PARTS[name]()
        print(name, record[name], flush=True)
    write_json(path, record, earlier)


if __name__ == "__main__":
    main()
