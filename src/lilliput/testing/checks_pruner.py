"""Promises of pruners: exact counts, zeros that stay zero, and all masks or none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.core.compressor import Compressor
from lilliput.ops.channels import channel_rows
from lilliput.quantization.naive import NaiveQuantizer
from lilliput.testing.expect import expect, expect_close, expect_equal, expect_zero
from lilliput.testing.faults import FaultError, break_last_layer, compress_with_fault
from lilliput.testing.models import TinyCNN, TinyMLP
from lilliput.testing.observe import (
    Anatomy,
    entries,
    loss_of,
    outputs,
    sgd,
    tensors_of,
    train,
)
from lilliput.testing.subject import Check, Subject, seeded

_SPARSITIES = (0.0, 0.1, 0.5, 0.8, 0.99)


@seeded
def check_masks(subject: Subject) -> None:
    """Masks are ones and zeros in the weight's shape, dtype and device, and part of the model."""
    for model in subject.models():
        compressor = subject.compress(model)
        expect(compressor.get_modules_wrapper(), f"no layer of {type(model).__name__} is wrapped.")
        registered = {id(buffer) for buffer in model.buffers()}
        with torch.no_grad():
            for entry in entries(compressor, with_bias=True):
                entry.raw.fill_(0.25)  # so that what is not masked shows
        for entry in entries(compressor, with_bias=True):
            mask = entry.mask
            if mask is None:
                continue
            received = (tuple(mask.shape), mask.dtype, mask.device)
            wanted = (tuple(entry.raw.shape), entry.raw.dtype, entry.raw.device)
            expect(received == wanted, f"mask of {entry.label}: {received}, expected {wanted}.")
            is_binary = bool(((mask == 0) | (mask == 1)).all())
            expect(is_binary, f"mask of {entry.label} has other values than 0 and 1.")
            expect(id(mask) in registered, f"mask of {entry.label} is no buffer of the model.")
            expect(not mask.requires_grad, f"mask of {entry.label} asks for a gradient.")
            what = f"{entry.label} as its layer sees it"
            expect_equal(entry.seen, entry.raw.detach() * mask, what)


@seeded
def check_writes_reach_the_weights(subject: Subject) -> None:
    """A masked layer shows its Parameter: what is written to it stays, and its gradient is seen."""
    for model in subject.models():
        compressor = subject.compress(model)
        for entry in entries(compressor, with_bias=True):
            shown = model.get_parameter(entry.label)
            expect(shown is entry.raw, f"get_parameter({entry.label!r}) is not the Parameter.")
            shown.data.fill_(0.25)  # .data moves no version counter
            wanted = torch.full_like(shown, 0.25)
            wanted = wanted if entry.mask is None else wanted * entry.mask
            seen = model.get_parameter(entry.label).detach()
            expect_equal(seen, wanted, f"{entry.label} after a write to it")
        loss_of(model, model.make_input()).backward()  # type: ignore[no-untyped-call]
        for entry in entries(compressor):
            gradient = model.get_parameter(entry.label).grad
            expect(gradient is entry.raw.grad, f"the gradient of {entry.label} is not shown.")


@seeded
def check_exact_sparsity(subject: Subject) -> None:
    """Each layer loses exactly ``round(n * sparsity)`` weights, however many are equal.

    Where whole channels go, they are what is counted, and one of them stays.
    """
    key = subject.sparsity_key
    if key is None or not subject.cls.exact_sparsity:
        return
    for fill_name, fill in _FILLS.items():
        for sparsity in _SPARSITIES:
            for model in subject.models(TinyCNN, TinyMLP):
                _fill(model, fill)
                compressor = subject.compress(model, **{key: sparsity})
                removes_channels = getattr(compressor, "removes_channels", False)
                for entry in entries(compressor, with_companions=False):
                    is_zero = entry.seen == 0
                    if removes_channels:
                        is_zero = channel_rows(is_zero, *entry.channels).all(1)
                    size, zeros = is_zero.numel(), int(is_zero.sum())
                    most = size - 1 if removes_channels else size
                    wanted = min(round(size * sparsity), most)
                    layer = entry.label.rpartition(".")[0]
                    expect(
                        zeros == wanted,
                        f"sparsity {sparsity:g} with {fill_name} weights: layer {layer!r} has "
                        f"{zeros} zeros of {size}, expected {wanted}.",
                    )


def _grid(weight: Tensor) -> Tensor:
    steps = torch.arange(weight.numel()) * 5 % 8 - 4
    return (torch.where(steps >= 0, steps + 1, steps) / 8).view_as(weight)


_FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda weight: weight,
    "constant": lambda weight: torch.full_like(weight, 0.5),
    "few distinct": _grid,
}


@torch.no_grad()
def _fill(model: nn.Module, fill: Callable[[Tensor], Tensor]) -> None:
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.copy_(fill(parameter))


@seeded
def check_pruned_weights_stay_zero(subject: Subject) -> None:
    """Neither momentum from before, nor weight decay, nor Adam moves a pruned weight."""
    if subject.cls.regrows:
        return
    for make_optimizer in (sgd, _adamw):
        for model in subject.models():
            optimizer = make_optimizer(model)
            train(model, optimizer, 3)
            compressor = subject.compress(model, optimizer)
            if compressor.optimizer is None:
                # Without the optimizer in hand, nobody can make it forget its momentum.
                optimizer = make_optimizer(model)
            pruned = {e.label: e.pruned for e in entries(compressor)}
            before = {e.label: e.raw.detach().clone() for e in entries(compressor)}
            for step in range(6):
                train(model, optimizer, 1, compressor)
                _expect_pruned(compressor, pruned, f"{type(optimizer).__name__} step {step + 1}")
            for entry in entries(compressor):
                kept = ~pruned[entry.label]
                is_moving = (entry.raw.detach() != before[entry.label])[kept].any()
                expect(is_moving or not kept.any(), f"{entry.label}: no kept weight is training.")


def _expect_pruned(compressor: Compressor, pruned: dict[str, Tensor], when: str) -> None:
    for entry in entries(compressor):
        where = pruned[entry.label]
        expect_zero(entry.seen[where], f"{when}, pruned weights of {entry.label}")
        if compressor.optimizer is not None:
            expect_zero(entry.raw[where], f"{when}, raw pruned weights of {entry.label}")
        if entry.raw.grad is not None:
            expect_zero(entry.raw.grad[where], f"{when}, gradient of pruned {entry.label}")


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)


@seeded
def check_failing_calc_mask_leaves_model_alone(subject: Subject) -> None:
    """If the algorithm fails on one layer, no layer is changed: at compress() or later."""
    model = subject.model()
    optimizer = sgd(model)
    anatomy = Anatomy(model, optimizer)
    compressor = subject.build(model, optimizer)
    if compress_with_fault(compressor, model):
        for key, value in model.state_dict().items():
            expect_equal(value, anatomy.values[key], f"{key} after calc_mask failed")
        # A pruner that was given an optimizer follows it from its construction until strip().
        if compressor.bound_model is not None:
            compressor.strip()
        anatomy.expect_same(model, "after calc_mask failed", optimizer)
    model = subject.model()
    compressor = subject.compress(model, sgd(model))
    before, inputs = tensors_of(compressor), model.make_input()
    expected = outputs(model, inputs)
    break_last_layer(compressor)
    updates: tuple[Callable[[], Any], ...] = (compressor.step, lambda: compressor.update_epoch(1))
    for update in updates:
        try:
            update()
        except FaultError:
            for key, value in tensors_of(compressor).items():
                expect_equal(value, before[key], f"{key} after calc_mask failed in an update")
    expect_equal(outputs(model, inputs), expected, "outputs after calc_mask failed in an update")


@seeded
def check_compress_works_after_a_failure(subject: Subject) -> None:
    """Once the cause of a failure is gone, compress() does the whole job."""
    model = subject.model()
    compressor = subject.build(model)
    reference = type(model)()
    reference.load_state_dict(model.state_dict())
    if compress_with_fault(compressor, model):
        compressor.compress(model)
        wanted = tensors_of(subject.compress(reference))
        for key, value in tensors_of(compressor).items():
            zeros = [int((x == 0).sum()) for x in (value, wanted[key])]
            what = f"{key} after calc_mask failed once and worked the second time"
            expect(zeros[0] == zeros[1], f"{what}: {zeros[0]} zeros, expected {zeros[1]}.")


@seeded
def check_quantizing_keeps_zeros(subject: Subject) -> None:
    """A quantizer on top leaves pruned weights at exactly zero, also while training."""
    for model in subject.models(TinyCNN, TinyMLP):
        optimizer = sgd(model)
        anatomy = Anatomy(model, optimizer)
        pruner = subject.compress(model, optimizer)
        pruned = {e.label: e.pruned for e in entries(pruner)}
        quantizer = NaiveQuantizer(model, [{"quant_bits": 4}], optimizer)
        quantizer.compress()
        for _ in range(2):
            for entry in entries(pruner):
                what = f"quantized after pruning, {entry.label}"
                expect_zero(entry.seen[pruned[entry.label]], what)
            if not subject.cls.regrows:
                train(model, optimizer, 2, pruner)
        pruner.strip()
        quantizer.strip()
        anatomy.expect_same(model, "after both were stripped", optimizer, values=False)


@seeded
def check_pruning_again(subject: Subject) -> None:
    """A second pruner, on top of the first or after strip, brings none of its zeros back."""
    more = {subject.sparsity_key: 0.7} if subject.sparsity_key else {}
    for is_stripped in (False, True):
        model = subject.model()
        first = subject.compress(model)
        zeros = {e.label: e.pruned for e in entries(first)}
        if is_stripped:
            first.strip()
        second = subject.compress(model, **more)
        for entry in entries(second):
            what = f"pruned twice ({'after strip' if is_stripped else 'on top'}), {entry.label}"
            expect_zero(entry.seen[zeros[entry.label]], what)
        second.strip()


@seeded
def check_strip_keeps_outputs(subject: Subject) -> None:
    """The plain model that strip leaves computes what the pruned one computed."""
    for is_loaded in (False, True):
        for model in subject.models():
            plain, optimizer, inputs = copy.deepcopy(model), sgd(model), model.make_input()
            compressor = subject.compress(model, optimizer)
            train(model, optimizer, 2, compressor)
            if is_loaded:  # weights behind the masks are no longer zero
                model.load_state_dict(plain.state_dict())
            before = outputs(model, inputs)
            compressor.strip()
            what = f"outputs of {type(model).__name__} after strip()"
            expect_close(outputs(model, inputs), before, what)


PRUNER_CHECKS: tuple[Check, ...] = (
    check_strip_keeps_outputs,
    check_masks,
    check_writes_reach_the_weights,
    check_exact_sparsity,
    check_pruned_weights_stay_zero,
    check_failing_calc_mask_leaves_model_alone,
    check_compress_works_after_a_failure,
    check_quantizing_keeps_zeros,
    check_pruning_again,
)
