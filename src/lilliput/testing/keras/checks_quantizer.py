"""Promises of quantizers: few levels, float weights that keep training, honest gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from lilliput.backends.keras.variables import to_array
from lilliput.config.layer import QuantType
from lilliput.core.grad import QuantGrad, gradient_rule
from lilliput.core.quantizer import Quantizer
from lilliput.pruning.level import LevelPruner
from lilliput.testing.expect import expect, expect_close, expect_equal, expect_zero
from lilliput.testing.keras.models import TinyAttention, TinyCNN, TinyLSTM, TinyMLP
from lilliput.testing.keras.observe import (
    Anatomy,
    entries,
    expect_finite,
    outputs,
    quantizes_activations,
)
from lilliput.testing.keras.subject import Check, Subject, seeded, set_seed
from lilliput.testing.keras.train import compiled, gradients, train

Array = Any


@seeded
def check_levels(subject: Subject) -> None:
    """A layer computes with at most ``2**bits`` different weights."""
    has_bits = "quant_bits" in subject.cls.rule.model_fields
    if not has_bits or not subject.cls.counts_levels:
        return
    for bits, kinds in ((2, (TinyCNN, TinyLSTM, TinyAttention)), (4, (TinyMLP,))):
        for model in subject.models(*kinds):
            compiled(model)
            quantizer = subject.compress(model, quant_bits=bits)
            for when in ("after compress()", "after training"):
                for entry in entries(quantizer):
                    levels = np.unique(entry.seen).size
                    text = f"{entry.label} has {levels} levels {when}, at most {2**bits} fit {bits} bits."
                    expect(levels <= 2**bits, text)
                train(model, 1, quantizer)


@seeded
def check_forward_leaves_float_weights_alone(subject: Subject) -> None:
    """Reading and running a layer changes none of the model's weights."""
    for model in subject.models():
        anatomy = Anatomy(model)
        subject.compress(model)
        outputs(model)
        for weight, value in zip(anatomy.weights, anatomy.values, strict=True):
            expect_equal(to_array(weight), value, f"{weight.path} after compress() and a forward")


@seeded
def check_quantized_weights_follow(subject: Subject) -> None:
    """A layer computes with its float weight as it is now, not as it was."""
    for model in subject.models(TinyCNN, TinyMLP):
        quantizer = subject.compress(model)
        before = {entry.label: entry.seen for entry in entries(quantizer)}
        for entry in entries(quantizer):
            entry.variable.assign(-entry.raw)
        for entry in entries(quantizer):
            is_stale = np.array_equal(entry.seen, before[entry.label])
            expect(not is_stale, f"{entry.label} is quantized to the same, its signs reversed.")


@seeded
def check_float_weights_train(subject: Subject) -> None:
    """The float weights are what the optimizer holds, and they keep changing."""
    for model in subject.models():
        optimizer = compiled(model)
        quantizer = subject.compress(model, optimizer)
        for step in range(2):
            before = {e.label: e.raw for e in entries(quantizer)}
            train(model, 1, quantizer)
            held = {id(variable) for variable in optimizer._trainable_variables}
            for entry in entries(quantizer):
                what = f"{entry.label} of {model.name}"
                expect(id(entry.variable) in held, f"the optimizer does not hold {what}.")
                is_same = np.array_equal(entry.raw, before[entry.label])
                expect(not is_same, f"float weight {what} did not move in step {step + 1}.")


@seeded
def check_gradient_reaches_weights(subject: Subject) -> None:
    """Every quantized weight gets a gradient that is finite and not all zero."""
    for model in subject.models():
        _check_gradients(subject.compress(model), model)
    if "quant_bits" in subject.cls.rule.model_fields:
        for model in subject.models(TinyMLP):
            _check_gradients(subject.compress(model, quant_bits=2), model)


def _check_gradients(quantizer: Any, model: Any) -> None:
    found = gradients(model)
    for entry in entries(quantizer):
        _expect_gradient(found.get(id(entry.variable)), f"{entry.label} of {model.name}")


def _expect_gradient(gradient: Array | None, what: str) -> None:
    if gradient is None:
        expect(False, f"{what} gets no gradient; is it detached on the way?")
    else:
        expect(np.isfinite(gradient).all(), f"{what} has a gradient that is not finite.")
        expect(gradient.any(), f"{what} has a gradient of zeros only.")


@seeded
def check_straight_through_gradient(subject: Subject) -> None:
    """The default gradient is the one of a plain model that has the quantized weights."""
    for model in subject.models(TinyCNN, TinyMLP):
        anatomy = Anatomy(model)
        quantizer: Any = subject.compress(model)
        rule = gradient_rule(quantizer.quant_grad)
        is_default = rule is not None and rule.quant_backward is QuantGrad.quant_backward
        if not is_default or quantizes_activations(quantizer):
            return
        twin = anatomy.twin(model, quantizer)
        found, wanted = gradients(model), gradients(twin)
        pairs = zip(anatomy.weights, twin.weights, strict=True)
        for weight, other in pairs:
            if wanted.get(id(other)) is not None:
                what = f"straight-through gradient of {weight.path}"
                expect_close(found[id(weight)], wanted[id(other)], what)


class _Threefold(QuantGrad):
    """Three times the gradient, for weights."""

    @staticmethod
    def quant_backward(tensor: Any, grad_output: Any, quant_type: QuantType) -> Any:
        return grad_output * 3 if quant_type == QuantType.WEIGHT else grad_output


@seeded
def check_own_gradient_is_used(subject: Subject) -> None:
    """A subclass of QuantGrad in ``quant_grad`` decides what the gradient is."""
    if subject.make is not None:
        return
    for kind in (TinyCNN, TinyMLP):
        found: list[dict[str, Array]] = []
        for rule in (QuantGrad, _Threefold):
            set_seed(2)
            changed = Subject(
                type(subject.name, (subject.cls,), {"quant_grad": rule}), subject.config
            )
            for model in changed.models(kind):
                quantizer = changed.compress(model)
                by_weight = gradients(model)
                found.append({e.label: by_weight[id(e.variable)] for e in entries(quantizer)})
        for plain, own in zip(found[::2], found[1::2], strict=True):
            for label, gradient in plain.items():
                expect_close(own[label], gradient * 3, f"three times the gradient of {label}")


@seeded
def check_pruned_weights_stay_zero(subject: Subject) -> None:
    """Weights pruned before or after stay exactly zero under the quantizer."""
    rules = [{"op_types": ["Conv2D", "Dense"], "sparsity": 0.6}]
    for is_pruned_first in (True, False):
        for model in subject.models(TinyCNN, TinyMLP):
            optimizer = compiled(model)
            train(model, 1)
            anatomy = Anatomy(model, optimizer)
            pruner = LevelPruner(model, rules, optimizer)
            if is_pruned_first:
                pruner.compress()
            quantizer = subject.compress(model, optimizer)
            if not is_pruned_first:
                pruner.compress()
            for when in ("at once", "after training"):
                for entry in entries(pruner):
                    if entry.mask is not None:
                        what = f"pruned and quantized, {when}, {entry.label}"
                        expect_zero(entry.seen[entry.mask == 0], what)
                train(model, 1, quantizer)
            quantizer.strip()
            pruner.strip()
            anatomy.expect_same(model, "after both were stripped", values=False)


@seeded
def check_activations(subject: Subject) -> None:
    """Quantized inputs and outputs let the gradient through, and strip leaves nothing behind."""
    if not issubclass(subject.cls, Quantizer) or "quant_types" in subject.settings:
        return
    names = {kind.value: f"quantize_{kind.value}" for kind in QuantType}
    own = [k for k, n in names.items() if getattr(subject.cls, n) is not getattr(Quantizer, n)]
    if own == ["weight"]:
        return
    for model in subject.models(TinyCNN, TinyMLP):
        optimizer = compiled(model)
        train(model, 1)
        anatomy = Anatomy(model, optimizer)
        quantizer = subject.compress(model, optimizer, quant_types=own)
        train(model, 2, quantizer)
        _check_gradients(quantizer, model)
        expect_finite(outputs(model), "outputs with quantized activations")
        quantizer.strip()
        anatomy.expect_same(model, f"after strip() with {own} quantized", values=False)


@seeded
def check_strip_leaves_float_weights(subject: Subject) -> None:
    """The plain model that strip leaves holds the float weights as they were trained."""
    for model in subject.models():
        compiled(model)
        anatomy = Anatomy(model)
        compressor = subject.compress(model)
        train(model, 1, compressor)
        trained = [to_array(weight) for weight in anatomy.weights]
        compressor.strip()
        for weight, value in zip(anatomy.weights, trained, strict=True):
            expect_equal(to_array(weight), value, f"{weight.path} after strip()")


QUANTIZER_CHECKS: tuple[Check, ...] = (
    check_levels,
    check_forward_leaves_float_weights_alone,
    check_quantized_weights_follow,
    check_float_weights_train,
    check_gradient_reaches_weights,
    check_straight_through_gradient,
    check_own_gradient_is_used,
    check_pruned_weights_stay_zero,
    check_activations,
    check_strip_leaves_float_weights,
)
