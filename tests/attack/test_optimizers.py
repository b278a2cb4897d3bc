"""Optimizers × mixed precision × schedulers × activation checkpointing, against plain references.

Each reference is written out here with torch alone: what the algorithm is on paper, trained by the same
optimizer in the same precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lilliput.torch import LevelPruner, LSQQuantizer, QATQuantizer, SlimPruner, TaylorFOWeightPruner

pytestmark = pytest.mark.slow

STEPS = 5
DATA = [
    (
        torch.randn(6, 8, generator=torch.Generator().manual_seed(i)),
        torch.tensor([0, 1, 2, 0, 1, 2]),
    )
    for i in range(STEPS)
]
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": lambda p, **k: optim.SGD(p, lr=0.05, **k),
    "momentum": lambda p, **k: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1, **k),
    "nesterov": lambda p, **k: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, **k),
    "adam": lambda p, **k: optim.Adam(p, lr=0.01, **k),
    "adam decay": lambda p, **k: optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True, **k),
    "adamw": lambda p, **k: optim.AdamW(p, lr=0.01, weight_decay=0.1, **k),
    "adagrad": lambda p, **k: optim.Adagrad(p, lr=0.01, weight_decay=0.1, **k),
    "adadelta": lambda p, **k: optim.Adadelta(p, weight_decay=0.1, **k),
    "adamax": lambda p, **k: optim.Adamax(p, lr=0.01, weight_decay=0.1, **k),
    "asgd": lambda p, **k: optim.ASGD(p, lr=0.01, weight_decay=0.1, **k),
    "nadam": lambda p, **k: optim.NAdam(p, lr=0.01, decoupled_weight_decay=True, **k),
    "radam": lambda p, **k: optim.RAdam(p, lr=0.01, weight_decay=0.1, **k),
    "rmsprop": lambda p, **k: optim.RMSprop(p, lr=0.01, momentum=0.5, weight_decay=0.1, **k),
    "rprop": lambda p, **k: optim.Rprop(p, lr=0.01, **k),
    "adafactor": lambda p, **k: optim.Adafactor(p, lr=0.01, weight_decay=0.1, **k),
}
FUSED = ("sgd", "momentum", "nesterov", "adam", "adam decay", "adamw", "adagrad")
PRECISIONS = ("float32", "bfloat16", "float16")
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda o: None,
    "lambda": lambda o: optim.lr_scheduler.LambdaLR(o, lambda step: 0.7**step),
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "sequence": lambda o: optim.lr_scheduler.SequentialLR(
        o,
        [
            optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
            optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
        ],
        milestones=[2],
    ),
}
CHECKPOINTS = ("none", "reentrant", "other")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def variants(name: str) -> list[tuple[str, bool, str, str, str]]:
    """Return precision, fused, scheduler, when it is made, and checkpointing, in all combinations."""
    fused = (False, True) if name in FUSED else (False,)
    combined = itertools.product(PRECISIONS, fused, SCHEDULERS, ("before", "after"), CHECKPOINTS)
    return [
        (precision, is_fused, scheduler, when, kind)
        for precision, is_fused, scheduler, when, kind in combined
        if (scheduler != "none" or when == "before") and (kind == "none" or scheduler == "lambda")
    ]


def train(
    run: Callable[[Tensor], Tensor],
    optimizer: Any,
    scheduler: Any,
    precision: str,
    kind: str = "none",
    after_step: Callable[[], None] = lambda: None,
    penalty: Callable[[], Tensor | float] = lambda: 0.0,
) -> None:
    """Train as a user does: autocast, GradScaler for float16, one scheduler step per step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=precision == "float16")
    autocast = (
        nullcontext()
        if precision == "float32"
        else torch.autocast("cpu", dtype=getattr(torch, precision))
    )
    for inputs, targets in DATA:
        optimizer.zero_grad()
        with autocast:
            if kind == "none":
                outputs = run(inputs)
            else:
                first = inputs.clone().requires_grad_()  # the reentrant kind asks for it
                outputs = checkpoint(run, first, use_reentrant=kind == "reentrant")
        loss = F.cross_entropy(outputs.float(), targets) + penalty()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        after_step()
        if scheduler is not None:
            scheduler.step()


def tolerance(name: str) -> dict[str, float]:
    # The sign of a rounding error moves Rprop by a whole step.
    return {"rtol": 1e-4, "atol": 2e-2 if name == "rprop" else 1e-5}


def expect_equal(found: list[Tensor], expected: list[Tensor], title: Any, **limits: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.detach(), other.detach(), msg=lambda text: f"{title}: {text}", **limits
        )


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_pruned_training_is_that_of_a_masked_product(name: str) -> None:
    for variant in variants(name):
        precision, fused, scheduler, when, kind = variant
        options = {"fused": True} if fused else {}
        model, plain = network(), network()
        optimizer = OPTIMIZERS[name](model.parameters(), **options)
        early = SCHEDULERS[scheduler](optimizer) if when == "before" else None
        LevelPruner(model, [{"sparsity": 0.5}], optimizer).compress()
        train(model, optimizer, early or SCHEDULERS[scheduler](optimizer), precision, kind)

        weights = [plain[0].weight, plain[2].weight]
        masks = [
            (w.abs() > w.abs().flatten().sort()[0][w.numel() // 2 - 1]).float() for w in weights
        ]

        def run(x: Tensor, plain: Any = plain, masks: Any = masks) -> Tensor:
            hidden = F.linear(x, plain[0].weight * masks[0], plain[0].bias).relu()
            return F.linear(hidden, plain[2].weight * masks[1], plain[2].bias)

        @torch.no_grad()
        def zero(weights: Any = weights, masks: Any = masks) -> None:
            for weight, mask in zip(weights, masks, strict=True):
                weight.mul_(mask)

        zero()
        reference = OPTIMIZERS[name](plain.parameters(), **options)
        train(run, reference, SCHEDULERS[scheduler](reference), precision, after_step=zero)
        found = [dict(model.named_parameters())[key] for key, _ in plain.named_parameters()]
        expect_equal(found, list(plain.parameters()), (name, *variant), **tolerance(name))
        assert all(int((w == 0).sum()) == w.numel() // 2 for w in (found[0], found[2]))


class Ranged(nn.Module):
    """A linear layer whose input is rounded to 8 bits over a moving average of its range."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.low, self.high, self.is_new = linear, 0.0, 0.0, True

    def forward(self, x: Tensor) -> Tensor:
        share = 1.0 if self.is_new else 0.5
        self.low += share * (float(x.detach().min()) - self.low)
        self.high += share * (float(x.detach().max()) - self.high)
        self.is_new = False
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        scale = (high - low) / 255
        zero = round(-low / scale)
        rounded = torch.fake_quantize_per_tensor_affine(x.float(), scale, zero, 0, 255)
        return self.linear(rounded.to(x.dtype))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["momentum", "adamw", "adagrad"])
def test_ranges_of_quantization_aware_training_are_moving_averages(name: str) -> None:
    rules = [{"quant_types": ["input"], "quant_bits": 8}]
    for variant in variants(name):
        precision, fused, scheduler, when, kind = variant
        options = {"fused": True} if fused else {}
        model, plain = network(), network()
        optimizer = OPTIMIZERS[name](model.parameters(), **options)
        early = SCHEDULERS[scheduler](optimizer) if when == "before" else None
        quantizer = QATQuantizer(model, rules, optimizer, momentum=0.5)
        quantizer.compress()
        train(model, optimizer, early or SCHEDULERS[scheduler](optimizer), precision, kind)
        ranged = nn.Sequential(Ranged(plain[0]), nn.ReLU(), Ranged(plain[2]))
        reference = OPTIMIZERS[name](plain.parameters(), **options)
        train(ranged, reference, SCHEDULERS[scheduler](reference), precision)
        found = [(float(w.input_low), float(w.input_high)) for w in quantizer.get_modules_wrapper()]
        expected = [(ranged[i].low, ranged[i].high) for i in (0, 2)]
        limit = 1e-4 if precision == "float32" else 2e-2  # a step of the grid, now and then
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=limit, abs=limit), (name, *variant)
        weights = [dict(model.named_parameters())[key] for key, _ in plain.named_parameters()]
        expect_equal(weights, list(plain.parameters()), (name, *variant), rtol=limit, atol=limit)


class Learned(torch.autograd.Function):
    """Eq. 3 of the paper, entry by entry."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return (weight / scale).round().clamp(-7, 7) * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, scale = ctx.saved_tensors
        ratio = weight / scale
        inside = ratio.round().abs() <= 7
        terms = torch.where(inside, ratio.round() - ratio, 7 * ratio.sign())
        share = 1 / math.sqrt(weight.numel() * 7)
        return grads[0] * inside, (grads[0] * terms).sum() * share


@pytest.mark.parametrize("name", [x for x in OPTIMIZERS if x not in ("rprop", "adafactor")])
def test_learned_scales_are_trained_as_in_the_paper(name: str) -> None:
    rules = [{"quant_types": ["weight"], "quant_bits": 4, "granularity": "per_tensor"}]
    for variant in variants(name):
        precision, fused, scheduler, when, kind = variant
        options = {"fused": True} if fused else {}
        model, plain = network(), network()
        optimizer = OPTIMIZERS[name](model.parameters(), **options)
        early = SCHEDULERS[scheduler](optimizer) if when == "before" else None
        quantizer = LSQQuantizer(model, rules, optimizer)
        quantizer.compress()
        train(model, optimizer, early or SCHEDULERS[scheduler](optimizer), precision, kind)

        layers = [plain[0], plain[2]]
        scales = [nn.Parameter(2 * x.weight.detach().abs().mean() / math.sqrt(7)) for x in layers]

        def run(x: Tensor, layers: Any = layers, scales: Any = scales) -> Tensor:
            weights = [Learned.apply(x.weight, s) for x, s in zip(layers, scales, strict=True)]
            hidden = F.linear(x, weights[0], layers[0].bias).relu()
            return F.linear(hidden, weights[1], layers[1].bias)

        groups = [{"params": plain.parameters()}, {"params": scales}]
        reference = OPTIMIZERS[name](groups, **options)
        if "weight_decay" in reference.param_groups[1]:
            reference.param_groups[1]["weight_decay"] = 0.0

        @torch.no_grad()
        def keep_positive(scales: Any = scales) -> None:
            for scale in scales:
                scale.clamp_(min=1e-8)

        schedule = SCHEDULERS[scheduler](reference)
        train(run, reference, schedule, precision, after_step=keep_positive)
        found = [p for w in quantizer.get_modules_wrapper() for p in w.parameters()]
        expect_equal(found, scales, (name, *variant), rtol=1e-3, atol=1e-5)
        weights = [dict(model.named_parameters())[key] for key, _ in plain.named_parameters()]
        expect_equal(weights, list(plain.parameters()), (name, *variant), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [x for x in OPTIMIZERS if x != "rprop"])
def test_slimming_is_training_with_a_penalty(name: str) -> None:
    def normed() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    for precision, fused, scheduler, when, _ in {(*x[:4], "") for x in variants(name)}:
        options = {"fused": True} if fused else {}
        model, plain = normed(), normed()
        optimizer = OPTIMIZERS[name](model.parameters(), **options)
        early = SCHEDULERS[scheduler](optimizer) if when == "before" else None
        pruner = SlimPruner(model, [{"sparsity": 0.5}], optimizer, training_epochs=9, scale=0.05)
        pruner.compress()
        pruner.update_epoch(0)
        train(model, optimizer, early or SCHEDULERS[scheduler](optimizer), precision)
        reference = OPTIMIZERS[name](plain.parameters(), **options)
        train(
            plain,
            reference,
            SCHEDULERS[scheduler](reference),
            precision,
            penalty=lambda plain=plain: 0.05 * plain[1].weight.abs().sum(),
        )
        title = (name, precision, fused, scheduler, when)
        found = [dict(model.named_parameters())[key] for key, _ in plain.named_parameters()]
        expect_equal(found[2:3], [plain[1].weight], title, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FUSED)
def test_taylor_scores_are_those_of_unscaled_gradients(name: str) -> None:
    for precision, fused, kind in itertools.product(PRECISIONS, (False, True), CHECKPOINTS):
        model, plain = network(), network()
        optimizer = OPTIMIZERS[name](model.parameters(), fused=fused)
        rules = [{"sparsity": 0.5, "op_names": ["0"]}]
        pruner = TaylorFOWeightPruner(model, rules, optimizer, training_batches=99)
        pruner.compress()
        train(model, optimizer, None, precision, kind)
        effects: list[Tensor] = []
        reference = OPTIMIZERS[name](plain.parameters(), fused=False)

        def look(*_: Any, plain: Any = plain, effects: Any = effects) -> None:
            weight = plain[0].weight
            effects.append((weight.detach() * weight.grad).square().sum(1))

        reference.register_step_pre_hook(look)
        train(plain, reference, None, precision)
        (wrapper,) = pruner.get_modules_wrapper()
        found, expected = pruner.masker.score(wrapper), torch.stack(effects).mean(0)
        expect_equal([found], [expected], (name, precision, fused, kind), rtol=1e-3, atol=1e-7)
