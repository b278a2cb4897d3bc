"""Promises of pruners: exact counts, all masks or none, and zeros that others respect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lilliput.backends.keras.variables import read, to_array
from lilliput.quantization.naive import NaiveQuantizer
from lilliput.testing.expect import expect, expect_close, expect_equal, expect_zero
from lilliput.testing.faults import FaultError, break_last_layer, compress_with_fault
from lilliput.testing.keras.models import TinyCNN, TinyMLP, specimen_of
from lilliput.testing.keras.observe import Anatomy, dtype_of, entries, outputs, tensors_of
from lilliput.testing.keras.subject import Check, Subject, seeded
from lilliput.testing.keras.train import compiled, train

Array = Any
_SPARSITIES = (0.0, 0.1, 0.5, 0.8, 0.99)


@seeded
def check_masks(subject: Subject) -> None:
    """Masks are ones and zeros in the weight's shape and dtype, and variables of the model."""
    for model in subject.models():
        compressor = subject.compress(model)
        expect(compressor.get_modules_wrapper(), f"no layer of {model.name} is wrapped.")
        registered = {id(read(variable)) for variable in model.non_trainable_variables}
        for wrapper in compressor._every_wrapper():
            held = {"weight": wrapper.weight, "bias": wrapper.bias}
            for role, value in held.items():
                mask = wrapper.tensors().get(f"{role}_mask")
                if mask is None:
                    continue
                label = f"{role} mask of {wrapper.name}"
                received, wanted = (
                    (tuple(mask.shape), dtype_of(mask)),
                    (tuple(value.shape), dtype_of(value)),
                )
                expect(received == wanted, f"{label}: {received}, expected {wanted}.")
                is_binary = bool(np.isin(to_array(mask), (0, 1)).all())
                expect(is_binary, f"{label} has other values than 0 and 1.")
                expect(id(mask) in registered, f"{label} is no variable of the model.")
        _expect_masked(compressor)


def _expect_masked(compressor: Any) -> None:
    """Expect each layer to see the raw weight times its mask."""
    for entry in entries(compressor, with_bias=True):
        entry.variable.assign(np.full(entry.raw.shape, 0.25))  # so that what is not masked shows
    for entry in entries(compressor, with_bias=True):
        if entry.mask is not None:
            what = f"{entry.label} as its layer sees it"
            expect_equal(entry.seen, entry.raw * entry.mask, what)


@seeded
def check_exact_sparsity(subject: Subject) -> None:
    """Each layer loses exactly ``round(n * sparsity)`` weights, however many are equal.

    Where whole channels go, they are what is counted, and one of them stays.
    """
    key = subject.sparsity_key
    if key is None or not subject.cls.exact_sparsity:
        return
    for model in subject.models(TinyCNN, TinyMLP):
        weights = model.get_weights()
        for fill_name, fill in _FILLS.items():
            filled = [fill(weight) if weight.ndim > 1 else weight for weight in weights]
            for sparsity in _SPARSITIES:
                model.set_weights(filled)
                compressor = subject.compress(model, **{key: sparsity})
                _expect_sparsity(compressor, sparsity, fill_name)
                compressor.strip()


def _expect_sparsity(compressor: Any, sparsity: float, fill_name: str) -> None:
    removes_channels = getattr(compressor, "removes_channels", False)
    for entry in entries(compressor, with_companions=False):
        is_zero = entry.seen == 0
        if removes_channels:
            is_zero = _rows(is_zero, entry.axis)
        most = is_zero.size - 1 if removes_channels else is_zero.size
        zeros, wanted = int(is_zero.sum()), min(round(is_zero.size * sparsity), most)
        layer = entry.label.rpartition(".")[0]
        expect(
            zeros == wanted,
            f"sparsity {sparsity:g} with {fill_name} weights: layer {layer!r} has {zeros} zeros of "
            f"{is_zero.size}, expected {wanted}.",
        )


def _rows(is_zero: Array, axis: int) -> Array:
    """Return which channels are all zero."""
    others = tuple(i for i in range(is_zero.ndim) if i != axis)
    return is_zero.all(axis=others)


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
def check_failing_calc_mask_leaves_model_alone(subject: Subject) -> None:
    """If the algorithm fails on one layer, no layer is changed: at compress() or later."""
    model = subject.model()
    optimizer = compiled(model)
    train(model, 1)
    anatomy = Anatomy(model, optimizer)
    compressor = subject.build(model, optimizer)
    if compress_with_fault(compressor, model):
        anatomy.expect_same(model, "after calc_mask failed")
    model = subject.model()
    compressor = subject.compress(model, compiled(model))
    before, expected = tensors_of(compressor), outputs(model)
    break_last_layer(compressor)
    updates: tuple[Callable[[], Any], ...] = (compressor.step, lambda: compressor.update_epoch(1))
    for update in updates:
        try:
            update()
        except FaultError:
            for key, value in tensors_of(compressor).items():
                expect_equal(value, before[key], f"{key} after calc_mask failed in an update")
    expect_equal(outputs(model), expected, "outputs after calc_mask failed in an update")


@seeded
def check_compress_works_after_a_failure(subject: Subject) -> None:
    """Once the cause of a failure is gone, compress() does the whole job."""
    model = subject.model()
    compressor = subject.build(model)
    reference = specimen_of(model)()
    reference.set_weights(model.get_weights())
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
        optimizer = compiled(model)
        train(model, 1)
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
                train(model, 2, pruner)
        pruner.strip()
        quantizer.strip()
        anatomy.expect_same(model, "after both were stripped", values=False)


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
            if entry.label in zeros:
                expect_zero(entry.seen[zeros[entry.label]], what)
        second.strip()


@seeded
def check_strip_keeps_outputs(subject: Subject) -> None:
    """The plain model that strip leaves computes what the pruned one computed."""
    for model in subject.models():
        compiled(model)
        weights, plain = list(model.weights), model.get_weights()
        compressor = subject.compress(model)
        train(model, 1, compressor)
        for is_loaded in (False, True):
            for weight, value in zip(weights, plain, strict=True) if is_loaded else ():
                weight.assign(value)  # what is behind the masks is no longer zero
            before = outputs(model)
            compressor.strip()
            expect_close(outputs(model), before, f"outputs of {model.name} after strip()")
            compressor.compress()


PRUNER_CHECKS: tuple[Check, ...] = (
    check_masks,
    check_exact_sparsity,
    check_failing_calc_mask_leaves_model_alone,
    check_compress_works_after_a_failure,
    check_quantizing_keeps_zeros,
    check_pruning_again,
    check_strip_keeps_outputs,
)
