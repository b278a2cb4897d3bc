"""Measure the cost of quantization-aware training: training step / float step, same network, same run.

    ./run python benchmarks/qat_step.py
    ./run python benchmarks/qat_step.py --only lilliput --rounds 11

All variants quantize the weight (int8 per channel) and the input (uint8, moving range) of every
convolution and linear layer, except PT2E, which places its quantizers itself. Times are CPU times of the
process on one thread; variants alternate in random order, and the median of the per-round ratios is reported.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Callable

import quant_peers as peers
import torch
from networks import encoder, resnet, set_gaussian_weights
from record import RESULTS, write_json
from timing import parameters
from torch import Tensor, nn

RESULT = RESULTS / "qat_step.json"
RULES = [{"op_types": ["Conv2d", "Linear"], "quant_types": ["weight", "input"]}]
TARGETS = {
    "QAT: lilliput": {"CNN": 1.10, "encoder": 1.12},
    "LSQ: lilliput": {"CNN": 1.15, "encoder": 1.18},
}


def make_cnn() -> tuple[nn.Module, Tensor]:
    model = resnet((2, 2, 2, 2), expansion=1, width=32, classes=10, small=True)
    return model, torch.randn(64, 3, 32, 32)


def make_encoder() -> tuple[nn.Module, Tensor]:
    return encoder(hidden=256, heads=4, inner=1024, layers=4), torch.randn(32, 64, 256)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


Prepared = tuple[nn.Module, torch.optim.Optimizer]
Variant = Callable[[nn.Module, Tensor], Prepared]


def plain(model: nn.Module, data: Tensor) -> Prepared:
    return model, sgd(model)


def lilliput(name: str) -> Variant:
    def prepare(model: nn.Module, data: Tensor) -> Prepared:
        import lilliput.torch

        optimizer = sgd(model)
        getattr(lilliput.torch, name)(model, RULES, optimizer).compress()
        return model, optimizer

    return prepare


def peer(quantize: Callable[[nn.Module, Tensor], nn.Module]) -> Variant:
    def prepare(model: nn.Module, data: Tensor) -> Prepared:
        return plain(quantize(model, data), data)

    return prepare


VARIANTS: dict[str, Variant] = {
    "float": plain,
    "float again": plain,
    "QAT: lilliput": lilliput("QATQuantizer"),
    "LSQ: lilliput": lilliput("LSQQuantizer"),
    "QAT: aten fake_quantize": peer(peers.aten_qat),
    "QAT: torch.ao FakeQuantize": peer(peers.torch_ao_qat),
    "QAT: torchao PT2E": peer(peers.torchao_qat),
    "LSQ: brevitas": peer(peers.brevitas_qat),
}
NEEDS = {"QAT: torchao PT2E": "torchao", "LSQ: brevitas": "brevitas"}


def make_step(model: nn.Module, data: Tensor, variant: Variant) -> Callable[[], None]:
    model, optimizer = variant(copy.deepcopy(model), data)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def choose(only: str) -> dict[str, Variant]:
    chosen = {}
    for name, variant in VARIANTS.items():
        is_wanted = name.startswith("float") or only in name
        if is_wanted and (name not in NEEDS or peers.installed(NEEDS[name])):
            chosen[name] = variant
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="part of the names of the variants to run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    variants = choose(options.only)
    results: dict[str, dict[str, float]] = {}
    for title, make in (("CNN", make_cnn), ("encoder", make_encoder)):
        torch.manual_seed(0)
        model, data = make()
        set_gaussian_weights(model)
        steps = {name: make_step(model, data, variant) for name, variant in variants.items()}
        seconds = peers.side_by_side(steps, options.rounds)
        base = seconds["float"]
        results[title] = {name: peers.ratio(values, base) for name, values in seconds.items()}
        size = f"{parameters(model) / 1e6:.1f} M parameters, {min(base):.2f} s"
        print(f"\n{title} ({size}), ratio to the float step", flush=True)
        for name, value in results[title].items():
            target = f"   target {TARGETS[name][title]:.2f}" if name in TARGETS else ""
            print(f"  {name:<30}{value:6.3f}{target}", flush=True)
    if not options.only:
        write_json(RESULT, {"rounds": options.rounds, "ratios": results})


if __name__ == "__main__":
    main()
