"""Checks for quantizers: few levels, float weights that keep training, correct gradients."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from lilliput.config.layer import QuantType
from lilliput.core.compressor import Compressor
from lilliput.core.quantizer import Quantizer
from lilliput.ops.grad import QuantGrad, gradient_rule
from lilliput.pruning.level import LevelPruner
from lilliput.testing.expect import expect, expect_close, expect_zero
from lilliput.testing.lab import Array, Lab, Model
from lilliput.testing.observe import (
    Anatomy,
    entries,
    expect_finite,
    expect_gradient,
    name_of,
    quantizes_activations,
)
from lilliput.testing.subject import Check, Subject, seeded


@seeded
def check_levels(subject: Subject) -> None:
    """A layer uses at most ``2**bits`` different weights."""
    if not subject.has_bits or not subject.cls.counts_levels:
        return
    lab = subject.lab
    for bits, kinds in ((2, lab.LAYER_KINDS), (4, lab.FEW), (8, lab.FEW)):
        for model in subject.models(*kinds):
            optimizer, quantizer = subject.set_up(model, quant_bits=bits)
            for when in ("after compress()", "after training"):
                for entry in entries(lab, quantizer):
                    levels = np.unique(entry.seen).size
                    text = f"{entry.label} has {levels} levels {when}, at most {2**bits} fit {bits} bits."
                    expect(levels <= 2**bits, text)
                if when == "after compress()":
                    lab.train(model, optimizer, 1, quantizer)


@seeded
def check_forward_leaves_float_weights_alone(subject: Subject) -> None:
    """Reading and running a layer changes none of the model's weights."""
    for model in subject.models():
        anatomy = Anatomy(subject.lab, model)
        subject.compress(model)
        subject.lab.outputs(model)
        anatomy.expect_values(anatomy.values, "after compress() and a forward")


@seeded
def check_quantized_weights_follow(subject: Subject) -> None:
    """A layer uses its current float weight, not an outdated one."""
    lab = subject.lab
    for model in subject.models("cnn", "mlp"):
        quantizer = subject.compress(model)
        before = {entry.label: entry.seen for entry in entries(lab, quantizer)}
        for entry in entries(lab, quantizer):
            lab.write(entry.weight, -entry.raw)
        for entry in entries(lab, quantizer):
            is_stale = np.array_equal(entry.seen, before[entry.label])
            expect(not is_stale, f"{entry.label} is quantized to the same, its signs reversed.")


@seeded
def check_float_weights_train(subject: Subject) -> None:
    """The optimizer trains the float weights, and they keep changing."""
    lab = subject.lab
    for model in subject.models():
        optimizer, quantizer = subject.set_up(model, "momentum")
        for step in range(2 * lab.STEPS):
            before = {e.label: e.raw for e in entries(lab, quantizer)}
            lab.train(model, optimizer, 1, quantizer)
            held = {id(weight) for weight in lab.held(optimizer)}
            for entry in entries(lab, quantizer):
                what = f"{entry.label} of {name_of(model)}"
                expect(id(entry.weight) in held, f"the optimizer does not hold {what}.")
                is_same = np.array_equal(entry.raw, before[entry.label])
                expect(not is_same, f"float weight {what} did not move in step {step + 1}.")


@seeded
def check_gradient_reaches_weights(subject: Subject) -> None:
    """Every quantized weight gets a gradient that is finite and not all zero."""
    for model in subject.models():
        _expect_gradients(subject.lab, subject.compress(model), model)
    for model in subject.models(*subject.lab.FEW) if subject.has_bits else ():
        _expect_gradients(subject.lab, subject.compress(model, quant_bits=2), model)


def _expect_gradients(lab: Lab, quantizer: Compressor, model: Model) -> None:
    found = lab.gradients(model)
    for entry in entries(lab, quantizer):
        expect_gradient(found.get(id(entry.weight)), f"{entry.label} of {name_of(model)}")


@seeded
def check_straight_through_gradient(subject: Subject) -> None:
    """The default gradient is that of a plain model with the quantized weights."""
    lab = subject.lab
    for model in subject.models("cnn", "mlp"):
        anatomy = Anatomy(lab, model)
        quantizer: Any = subject.compress(model)
        rule = gradient_rule(quantizer.quant_grad)
        is_default = rule is not None and rule.quant_backward is QuantGrad.quant_backward
        if not is_default or quantizes_activations(quantizer):
            return
        twin = anatomy.twin(quantizer)
        found, wanted = lab.gradients(model), lab.gradients(twin)
        for key, weight in lab.weights(twin).items():
            expected = wanted.get(id(weight))
            if expected is not None:
                gradient = found.get(id(anatomy.weights[key]))
                what = f"straight-through gradient of {key}"
                expect_close(_there(gradient, what), expected, what)


def _there(gradient: Array | None, what: str) -> Array:
    expect(gradient is not None, f"{what}: there is none.")
    return gradient


class _Threefold(QuantGrad):
    """Three times the gradient, for weights."""

    @staticmethod
    def quant_backward(tensor: Any, grad_output: Any, quant_type: QuantType) -> Any:
        return grad_output * 3 if quant_type == QuantType.WEIGHT else grad_output


@seeded
def check_own_gradient_is_used(subject: Subject) -> None:
    """A subclass of QuantGrad in ``quant_grad`` defines the gradient."""
    if subject.make is not None:
        return
    lab = subject.lab
    for kind in ("cnn", "mlp"):
        found: list[dict[str, Array]] = []
        for rule in (QuantGrad, _Threefold):
            lab.set_seed(2)
            changed = replace(subject, cls=_with_gradient(subject.cls, rule))
            for model in changed.models(kind):
                quantizer = changed.compress(model)
                by_weight = lab.gradients(model)
                found.append({e.label: by_weight[id(e.weight)] for e in entries(lab, quantizer)})
        for plain, own in zip(found[::2], found[1::2], strict=True):
            for label, gradient in plain.items():
                expect_close(own[label], gradient * 3, f"three times the gradient of {label}")


def _with_gradient(cls: Any, rule: type[QuantGrad]) -> type:
    """Return a class with another gradient, also if its constructor sets one."""
    construct = cls.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        self.quant_grad = rule

    return type(cls.__name__, (cls,), {"__init__": __init__})


@seeded
def check_pruned_weights_stay_zero(subject: Subject) -> None:
    """Weights pruned before or after stay exactly zero under the quantizer."""
    lab = subject.lab
    rules = [{"op_types": list(lab.SIMPLE_TYPES), "sparsity": 0.6}]
    for is_pruned_first in (True, False):
        for model in subject.models("cnn", "mlp"):
            optimizer = lab.optimizer(model)
            lab.train(model, optimizer, 1)
            anatomy = Anatomy(lab, model, optimizer)
            if is_pruned_first:
                pruner = LevelPruner(model, rules, optimizer)
                pruner.compress()
            quantizer = subject.compress(model, optimizer)
            if not is_pruned_first:
                pruner = LevelPruner(model, rules, optimizer)
                pruner.compress()
            for when in ("at once", "after training"):
                for entry in entries(lab, pruner):
                    if entry.mask is not None:
                        what = f"pruned and quantized, {when}, {entry.label}"
                        expect_zero(entry.seen[entry.mask == 0], what)
                if when == "at once":
                    lab.train(model, optimizer, lab.STEPS, quantizer)
            quantizer.strip()
            pruner.strip()
            anatomy.expect_same("after both were stripped", values=False)


@seeded
def check_activations(subject: Subject) -> None:
    """Quantized inputs and outputs pass the gradient, and strip leaves nothing behind."""
    if not issubclass(subject.cls, Quantizer) or "quant_types" in subject.settings:
        return
    names = {kind.value: f"quantize_{kind.value}" for kind in QuantType}
    own = [k for k, n in names.items() if getattr(subject.cls, n) is not getattr(Quantizer, n)]
    if own == ["weight"]:
        return
    lab = subject.lab
    for model in subject.models("cnn", "mlp"):
        optimizer = lab.optimizer(model)
        lab.train(model, optimizer, 1)
        anatomy = Anatomy(lab, model, optimizer)
        quantizer = subject.compress(model, optimizer, quant_types=own)
        found = [lab.gradients(model)]
        for _ in range(2):
            lab.train(model, optimizer, 1, quantizer)
            found.append(lab.gradients(model))
        for entry in entries(lab, quantizer):
            gradients = [g for step in found if (g := step.get(id(entry.weight))) is not None]
            # Sometimes everything that reaches the loss is clipped.
            total = sum(np.abs(gradient) for gradient in gradients) if gradients else None
            expect_gradient(total, f"{entry.label} of {name_of(model)}")
        expect_finite(lab.outputs(model), "outputs with quantized activations")
        quantizer.strip()
        anatomy.expect_same(f"after strip() with {own} quantized", values=False)


@seeded
def check_own_parameters_are_trained(subject: Subject) -> None:
    """Parameters that the algorithm adds to its wrappers (a learned scale) are trained."""
    lab = subject.lab
    for model in subject.models():
        optimizer, quantizer = subject.set_up(model, "momentum")
        own = {
            f"{wrapper.name}.{name}": weight
            for wrapper in quantizer.get_modules_wrapper()
            for name, weight in lab.learned(wrapper).items()
        }
        if not own:
            continue
        before = {name: lab.read(weight) for name, weight in own.items()}
        lab.train(model, optimizer, 3, quantizer)
        found = lab.gradients(model)
        for name, weight in own.items():
            moved = not np.array_equal(lab.read(weight), before[name])
            # The offset of an unclipped activation has a zero gradient.
            gradient = found.get(id(weight))
            is_reached = gradient is not None and not gradient.any()
            expect(moved or is_reached, f"the parameter {name} did not change in training.")
        quantizer.strip()
        left = {id(weight) for weight in own.values()} & {id(w) for w in lab.held(optimizer)}
        expect(not left, f"strip() left {len(left)} parameters in the optimizer.")


@seeded
def check_strip_leaves_float_weights(subject: Subject) -> None:
    """The plain model after strip has the float weights as trained."""
    for model in subject.models():
        anatomy = Anatomy(subject.lab, model)
        _, quantizer = subject.train(model)
        trained = anatomy.read()
        quantizer.strip()
        anatomy.expect_values(trained, "after strip()")


QUANTIZER_CHECKS: tuple[Check, ...] = (
    check_own_parameters_are_trained,
    check_strip_leaves_float_weights,
    check_levels,
    check_forward_leaves_float_weights_alone,
    check_quantized_weights_follow,
    check_float_weights_train,
    check_gradient_reaches_weights,
    check_straight_through_gradient,
    check_own_gradient_is_used,
    check_pruned_weights_stay_zero,
    check_activations,
)
