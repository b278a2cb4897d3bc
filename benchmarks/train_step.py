"""Measure the cost of masks and fake-quantized weights: training step / plain step, same network, same run.

    ./run python benchmarks/train_step.py              # eager
    ./run python benchmarks/train_step.py --compile    # torch.compile (Inductor), smaller networks

Times are CPU times of the process on one thread; variants alternate in random order and the median
of the per-round ratios is reported, so that a busy machine affects all of them equally.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable

import torch
from record import RESULTS, write_json
from torch import nn
from torch.nn.utils import parametrize, prune

from lilliput.torch import DoReFaQuantizer, L1NormPruner, LevelPruner, NaiveQuantizer

SPARSITY = 0.8
TYPES = ["Conv2d", "Linear", "MultiheadAttention"]


class Residual(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.skip = nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def make_cnn(small: bool) -> tuple[nn.Sequential, torch.Tensor]:
    widths = [32, 64] if small else [32, 32, 64, 64, 128, 128, 256, 256]
    blocks = [Residual(a, b, 1 + (b > a)) for a, b in zip([32, *widths], widths, strict=False)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), *blocks, *head), torch.randn(64, 3, 32, 32)


def make_encoder(small: bool) -> tuple[nn.Sequential, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 1 if small else 4, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(64, 256), body, nn.Linear(256, 64)), torch.randn(32, 64, 64)


def weights_of(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the same tensors that Lilliput's rule selects."""
    found = []
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            found.append((module, "weight"))
        elif isinstance(module, nn.MultiheadAttention):
            found.append((module, "in_proj_weight"))
    return found


class Masked(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        border = weight.detach().abs().flatten().kthvalue(int(weight.numel() * SPARSITY)).values
        self.register_buffer("mask", (weight.detach().abs() > border).float())

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.mask


class AtenFakeQuant(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        scale = weight.detach().abs().amax() / 127
        zero = torch.zeros((), dtype=torch.int32)
        return torch.fake_quantize_per_tensor_affine(weight, scale, zero, -127, 127)


def with_lilliput_masks(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    LevelPruner(model, [{"op_types": TYPES, "sparsity": SPARSITY}], optimizer).compress()


def with_lilliput_channels(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    rules = [{"op_types": TYPES, "sparsity": 0.5}]
    shape = (2, 64, 64) if isinstance(model[0], nn.Linear) else (2, 3, 32, 32)
    L1NormPruner(model, rules, optimizer, example_inputs=torch.randn(shape)).compress()


def with_torch_prune(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    bypassed = {m.out_proj for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for module, name in weights_of(model):
        if module not in bypassed:  # its hook never runs there, and the second backward fails
            prune.l1_unstructured(module, name, amount=SPARSITY)


def with_parametrize(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for module, name in weights_of(model):
        parametrize.register_parametrization(module, name, Masked(getattr(module, name)))


def with_lilliput_int8(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    NaiveQuantizer(model, [{"op_types": TYPES, "quant_bits": 8}], optimizer).compress()


def with_lilliput_dorefa(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    DoReFaQuantizer(model, [{"op_types": TYPES, "quant_bits": 8}], optimizer).compress()


def with_aten_int8(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for module, name in weights_of(model):
        parametrize.register_parametrization(module, name, AtenFakeQuant())


Variant = Callable[[nn.Module, torch.optim.Optimizer], None]
VARIANTS: dict[str, Variant] = {
    "plain": lambda model, optimizer: None,
    "plain again": lambda model, optimizer: None,
    "masks: lilliput": with_lilliput_masks,
    "channel masks, half: lilliput": with_lilliput_channels,
    "masks: torch.nn.utils.prune": with_torch_prune,
    "masks: parametrize": with_parametrize,
    "int8 weights: lilliput Naive": with_lilliput_int8,
    "int8 weights: lilliput DoReFa": with_lilliput_dorefa,
    "int8 weights: parametrize + aten": with_aten_int8,
}


def make_step(
    model: nn.Module, data: torch.Tensor, variant: Variant, compiled: bool
) -> Callable[[], None]:
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    variant(model, optimizer)
    run = torch.compile(model, fullgraph=True) if compiled else model

    def step() -> None:
        optimizer.zero_grad()
        run(data).square().mean().backward()
        optimizer.step()

    return step


def measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    for step in steps.values():
        for _ in range(3):
            step()
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        seconds = {}
        for name in random.sample(list(steps), len(steps)):
            start = time.process_time()
            steps[name]()
            seconds[name] = time.process_time() - start
        for name, value in seconds.items():
            ratios[name].append(value / seconds["plain"])
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="part of the names of the variants to run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # the variants share torch's code objects
    random.seed(0)
    results = {}
    for title, make in (("CNN", make_cnn), ("encoder", make_encoder)):
        torch.manual_seed(0)
        model, data = make(options.compile)
        chosen = {n: v for n, v in VARIANTS.items() if options.only in n or n.startswith("plain")}
        steps = {n: make_step(model, data, v, options.compile) for n, v in chosen.items()}
        results[title] = measure(steps, options.rounds)
        size = sum(p.numel() for p in model.parameters())
        print(f"\n{title} ({size / 1e6:.1f} M parameters), ratio to the plain step")
        for name, ratio in results[title].items():
            print(f"  {name:<34}{ratio:6.3f}")
    mode = "compiled" if options.compile else "eager"
    if not options.only:
        record = {"mode": mode, "rounds": options.rounds, "ratios": results}
        write_json(RESULTS / f"train_step_{mode}.json", record)


if __name__ == "__main__":
    main()
