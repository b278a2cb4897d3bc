"""Checks for pruners: exact counts, zeros that stay zero, and all masks or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lilliput.core.compressor import Compressor
from lilliput.quantization.naive import NaiveQuantizer
from lilliput.testing.expect import expect, expect_close, expect_equal, expect_zero
from lilliput.testing.faults import FaultError, break_last_layer, compress_with_fault
from lilliput.testing.lab import Array, Lab
from lilliput.testing.observe import Anatomy, Watch, entries, name_of, tensors_of
from lilliput.testing.subject import Check, Subject, seeded

_SPARSITIES = (0.0, 0.1, 0.5, 0.8, 0.99)


@seeded
def check_masks(subject: Subject) -> None:
    """Masks are ones and zeros in the weight's shape, dtype and device, and part of the model."""
    lab = subject.lab
    for model in subject.models():
        compressor = subject.compress(model)
        expect(compressor.get_modules_wrapper(), f"no layer of {name_of(model)} is wrapped.")
        for entry in entries(lab, compressor, with_bias=True):
            lab.write(entry.weight, np.full_like(entry.raw, 0.25))  # makes kept weights visible
        for entry in entries(lab, compressor, with_bias=True):
            if entry.mask is None:
                continue
            label = f"mask of {entry.label}"
            received, wanted = lab.describe(entry.mask_tensor), lab.describe(entry.weight)
            expect(received == wanted, f"{label}: {received}, expected {wanted}.")
            expect(np.isin(entry.mask, (0, 1)).all(), f"{label} has values other than 0 and 1.")
            is_held = lab.holds(model, entry.mask_tensor)
            expect(is_held, f"{label} is not part of the model, or is trained with it.")
            what = f"{entry.label} as its layer sees it"
            if subject.cls.computes_weights:  # kept weights are computed, too
                expect_zero(entry.seen[entry.mask == 0], what)
            else:
                expect_equal(entry.seen, entry.raw * entry.mask, what)


@seeded
def check_exact_sparsity(subject: Subject) -> None:
    """Each layer loses exactly ``round(n * sparsity)`` weights, even with ties.

    For whole channels, channels are counted, and at least one is kept.
    """
    key = subject.sparsity_key
    if key is None or not subject.cls.exact_sparsity:
        return
    for model in subject.models("cnn", "mlp"):
        anatomy = Anatomy(subject.lab, model)
        for fill_name, fill in _FILLS.items():
            filled = {k: fill(v) if v.ndim > 1 else v for k, v in anatomy.values.items()}
            for sparsity in _SPARSITIES:
                anatomy.write(filled)
                compressor = subject.compress(model, **{key: sparsity})
                _expect_sparsity(subject.lab, compressor, sparsity, fill_name)
                compressor.strip()


def _expect_sparsity(lab: Lab, compressor: Compressor, sparsity: float, fill_name: str) -> None:
    removes_channels = getattr(compressor, "removes_channels", False)
    for entry in entries(lab, compressor, with_companions=False):
        is_zero, info = entry.seen == 0, entry.wrapper.layer_info
        if removes_channels:
            is_zero = _channels(is_zero, info.out_axis, info.out_groups).all(1)
        most = is_zero.size - 1 if removes_channels else is_zero.size
        zeros, wanted = int(is_zero.sum()), min(round(is_zero.size * sparsity), most)
        layer = entry.label.rpartition(".")[0]
        expect(
            zeros == wanted,
            f"sparsity {sparsity:g} with {fill_name} weights: layer {layer!r} has {zeros} zeros of "
            f"{is_zero.size}, expected {wanted}.",
        )


def _channels(weight: Array, axis: int, groups: int) -> Array:
    """Return one row per channel; ``axis`` counts those of one of the groups along axis 0."""
    blocks = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    moved = np.moveaxis(blocks, axis + 1, 1)
    return moved.reshape(moved.shape[0] * moved.shape[1], -1)


def _grid(weight: Array) -> Array:
    steps = np.arange(weight.size) * 5 % 8 - 4
    values = np.where(steps >= 0, steps + 1, steps) / 8
    return values.reshape(weight.shape).astype(weight.dtype)


_FILLS: dict[str, Callable[[Array], Array]] = {
    "random": lambda weight: weight,
    "constant": lambda weight: np.full_like(weight, 0.5),
    "few distinct": _grid,
}


@seeded
def check_pruned_weights_stay_zero(subject: Subject) -> None:
    """Neither earlier momentum, nor weight decay, nor Adam moves a pruned weight."""
    if subject.cls.regrows:
        return
    lab = subject.lab
    for name, kinds in (("sgd", lab.LAYER_KINDS), ("adamw", lab.FEW)):
        for model in subject.models(*kinds):
            optimizer = lab.optimizer(model, name)
            lab.train(model, optimizer, lab.STEPS)  # gives the optimizer state for all weights
            compressor = subject.compress(model, optimizer)
            if compressor.optimizer is None:  # its momentum cannot be reset
                optimizer = lab.optimizer(model, name)
            watch = Watch(lab, compressor)
            for step in range(2 * lab.STEPS):
                lab.train(model, optimizer, 1, compressor)
                when = f"{name_of(model)}, {name} step {step + 1}"
                watch.expect_zeros(when)
                watch.expect_no_gradient(model, when)
            watch.expect_training(f"{name_of(model)}, {name}")


@seeded
def check_failing_calc_mask_leaves_model_alone(subject: Subject) -> None:
    """If the algorithm fails on one layer, no layer is changed: at compress() or later."""
    lab, model = subject.lab, subject.model()
    optimizer = lab.optimizer(model)
    lab.train(model, optimizer, 1)
    anatomy = Anatomy(lab, model, optimizer)
    compressor = subject.build(model, optimizer)
    if compress_with_fault(compressor, model):
        # A pruner with an optimizer may observe the training until strip().
        anatomy.expect_same("after calc_mask failed", hooks=False)
        if compressor.bound_model is not None:
            compressor.strip()
        anatomy.expect_same("after calc_mask failed and strip()")
    model = subject.model()
    compressor = subject.compress(model, lab.optimizer(model))
    before, expected = tensors_of(lab, compressor), lab.outputs(model)
    break_last_layer(compressor)
    updates: tuple[Callable[[], Any], ...] = (compressor.step, lambda: compressor.update_epoch(1))
    for update in updates:
        try:
            update()
        except FaultError:
            for key, value in tensors_of(lab, compressor).items():
                expect_equal(value, before[key], f"{key} after calc_mask failed in an update")
    expect_equal(lab.outputs(model), expected, "outputs after calc_mask failed in an update")


@seeded
def check_compress_works_after_a_failure(subject: Subject) -> None:
    """Once the cause of a failure is removed, compress() does the whole job."""
    lab, model = subject.lab, subject.model()
    compressor = subject.build(model)
    reference = lab.like(model)
    Anatomy(lab, reference).write(Anatomy(lab, model).values)
    if compress_with_fault(compressor, model):
        compressor.compress(model)
        wanted = tensors_of(lab, subject.compress(reference))
        for key, value in tensors_of(lab, compressor).items():
            zeros = [int((x == 0).sum()) for x in (value, wanted[key])]
            what = f"{key} after calc_mask failed once and worked the second time"
            expect(zeros[0] == zeros[1], f"{what}: {zeros[0]} zeros, expected {zeros[1]}.")


@seeded
def check_quantizing_keeps_zeros(subject: Subject) -> None:
    """A quantizer on top keeps pruned weights at exactly zero, also in training."""
    lab = subject.lab
    for model in subject.models("cnn", "mlp"):
        optimizer = lab.optimizer(model)
        lab.train(model, optimizer, 1)
        anatomy = Anatomy(lab, model, optimizer)
        pruner = subject.compress(model, optimizer)
        if pruner.optimizer is None:  # its momentum cannot be reset
            optimizer = lab.optimizer(model)
        pruned = {e.label: e.pruned for e in entries(lab, pruner)}
        quantizer = NaiveQuantizer(model, [{"quant_bits": 4}], optimizer)
        quantizer.compress()
        for _ in range(2):
            for entry in entries(lab, pruner):
                what = f"quantized after pruning, {entry.label}"
                expect_zero(entry.seen[pruned[entry.label]], what)
            if not subject.cls.regrows:
                lab.train(model, optimizer, 2, pruner)
        pruner.strip()
        quantizer.strip()
        anatomy.expect_same("after both were stripped", values=False)


@seeded
def check_pruning_again(subject: Subject) -> None:
    """A second pruner, on top of the first or after strip(), restores none of its zeros."""
    lab = subject.lab
    more = {subject.sparsity_key: 0.7} if subject.sparsity_key else {}
    for is_stripped in (False, True):
        model = subject.model()
        first = subject.compress(model)
        zeros = {e.label: e.pruned for e in entries(lab, first)}
        if is_stripped:
            first.strip()
        second = subject.compress(model, **more)
        now = {e.label: e.seen for e in entries(lab, second)}
        for label, pruned in zeros.items():
            what = f"pruned twice ({'after strip' if is_stripped else 'on top'}), {label}"
            expect_zero(now[label][pruned], what)
        second.strip()


@seeded
def check_strip_keeps_outputs(subject: Subject) -> None:
    """The plain model after strip() has the same outputs as the pruned one."""
    lab = subject.lab
    for model in subject.models():
        anatomy = Anatomy(lab, model)
        _, compressor = subject.train(model)
        for is_loaded in (False, True):
            if is_loaded:
                compressor.compress()
                anatomy.write(anatomy.values)  # weights behind the masks are no longer zero
            before = lab.outputs(model)
            compressor.strip()
            expect_close(lab.outputs(model), before, f"outputs of {name_of(model)} after strip()")


PRUNER_CHECKS: tuple[Check, ...] = (
    check_strip_keeps_outputs,
    check_masks,
    check_exact_sparsity,
    check_pruned_weights_stay_zero,
    check_failing_calc_mask_leaves_model_alone,
    check_compress_works_after_a_failure,
    check_quantizing_keeps_zeros,
    check_pruning_again,
)
