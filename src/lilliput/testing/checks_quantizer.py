"""Promises of quantizers: few levels, float weights that keep training, honest gradients."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from lilliput.config.layer import QuantType
from lilliput.core.grad import QuantGrad, gradient_rule
from lilliput.core.quantizer import Quantizer
from lilliput.errors import StageError
from lilliput.pruning.level import LevelPruner
from lilliput.testing.expect import (
    expect,
    expect_close,
    expect_equal,
    expect_zero,
)
from lilliput.testing.models import TinyCNN, TinyMLP
from lilliput.testing.observe import (
    Anatomy,
    entries,
    loss_of,
    outputs,
    plain_twin,
    quantizes_activations,
    sgd,
    train,
)
from lilliput.testing.subject import Check, Subject, seeded


@seeded
def check_levels(subject: Subject) -> None:
    """A layer computes with at most ``2**bits`` different weights."""
    has_bits = "quant_bits" in subject.cls.rule.model_fields
    if not has_bits or not subject.cls.counts_levels:
        return
    for bits in (2, 4, 8):
        for model in subject.models():
            optimizer = sgd(model)
            quantizer = subject.compress(model, optimizer, quant_bits=bits)
            for when in ("after compress()", "after training"):
                for entry in entries(quantizer):
                    levels = torch.unique(entry.seen).numel()
                    text = f"{entry.label} has {levels} levels {when}, at most {2**bits} fit {bits} bits."
                    expect(levels <= 2**bits, text)
                train(model, optimizer, 1, quantizer)


@seeded
def check_layers_use_quantized_weights(subject: Subject) -> None:
    """Each model computes what a plain one computes with the quantized weights."""
    for model in subject.models(TinyCNN, TinyMLP):
        pristine, inputs = copy.deepcopy(model), model.make_input()
        quantizer = subject.compress(model)
        if not quantizes_activations(quantizer):
            twin = plain_twin(pristine, model, quantizer)
            for is_training in (False, True):
                expected = outputs(twin, inputs, is_training)
                what = f"outputs of {type(model).__name__} against one with quantized weights"
                expect_close(outputs(model, inputs, is_training), expected, what)


@seeded
def check_forward_leaves_float_weights_alone(subject: Subject) -> None:
    """Reading and running a layer changes neither its float weight nor its state-dict key."""
    for model in subject.models():
        before = {key: value.clone() for key, value in model.state_dict().items()}
        quantizer = subject.compress(model)
        outputs(model, model.make_input())
        for entry in entries(quantizer):
            what = f"float weight {entry.label} after compress() and a forward"
            expect_equal(entry.raw.detach(), before[entry.label], what)


@seeded
def check_quantized_weights_follow(subject: Subject) -> None:
    """A layer computes with its float weight as it is now, not as it was."""
    for model in subject.models(TinyCNN, TinyMLP):
        quantizer = subject.compress(model)
        before = {entry.label: entry.seen.clone() for entry in entries(quantizer)}
        with torch.no_grad():
            for entry in entries(quantizer):
                entry.raw.neg_()
        for entry in entries(quantizer):
            is_stale = torch.equal(entry.seen, before[entry.label])
            expect(not is_stale, f"{entry.label} is quantized to the same, its signs reversed.")


@seeded
def check_edits_of_quantized_weights_raise(subject: Subject) -> None:
    """What a layer computes with cannot be edited by mistake; its Parameter can be had and edited."""
    for model in subject.models(TinyCNN, TinyMLP):
        quantizer = subject.compress(model)
        for wrapper in quantizer.get_modules_wrapper():
            name = str(wrapper.layer_info.weight_name)
            seen = getattr(wrapper.module, name)
            raw = wrapper.module.get_parameter(name)
            label = f"{wrapper.name}.{name}"
            expect(raw is wrapper.weight, f"get_parameter({label!r}) is not the Parameter.")
            try:
                seen.data.fill_(0.25)
            except StageError:
                continue
            expect(
                seen is raw, f"an edit of {label}, which is computed, was lost without an error."
            )


@seeded
def check_float_weights_train(subject: Subject) -> None:
    """The float weights are what the optimizer holds, and they keep changing."""
    for model in subject.models():
        optimizer = sgd(model)
        quantizer = subject.compress(model, optimizer)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for step in range(5):
            before = {e.label: e.raw.detach().clone() for e in entries(quantizer)}
            train(model, optimizer, 1, quantizer)
            for entry in entries(quantizer):
                expect(id(entry.raw) in held, f"the optimizer no longer holds {entry.label}.")
                is_same = torch.equal(entry.raw.detach(), before[entry.label])
                expect(not is_same, f"float weight {entry.label} did not move in step {step + 1}.")


@seeded
def check_gradient_reaches_weights(subject: Subject) -> None:
    """Every quantized weight gets a gradient that is finite and not all zero."""
    has_bits = "quant_bits" in subject.cls.rule.model_fields
    for settings in ({}, {"quant_bits": 2}) if has_bits else ({},):
        for model in subject.models():
            quantizer = subject.compress(model, **settings)
            loss_of(model, model.make_input()).backward()  # type: ignore[no-untyped-call]
            for entry in entries(quantizer):
                _expect_gradient(entry.raw, f"{entry.label} of {type(model).__name__}")


def _expect_gradient(weight: Tensor, what: str) -> None:
    if weight.grad is None:
        expect(False, f"{what} gets no gradient; is it detached on the way?")
    else:
        expect(weight.grad.isfinite().all(), f"{what} has a gradient that is not finite.")
        expect(weight.grad.any(), f"{what} has a gradient of zeros only.")


@seeded
def check_straight_through_gradient(subject: Subject) -> None:
    """The default gradient is the one of a plain model that has the quantized weights."""
    for model in subject.models(TinyCNN, TinyMLP):
        pristine, inputs = copy.deepcopy(model), model.make_input()
        quantizer: Any = subject.compress(model)
        rule = gradient_rule(quantizer.quant_grad)
        is_default = rule is not None and rule.quant_backward is QuantGrad.quant_backward
        if not is_default or quantizes_activations(quantizer):
            return
        twin = plain_twin(pristine, model, quantizer)
        for each in (model, twin):
            loss_of(each, inputs).backward()  # type: ignore[no-untyped-call]
        for entry in entries(quantizer):
            wanted, found = twin.get_parameter(entry.label).grad, entry.raw.grad
            expect(found is not None and wanted is not None, f"{entry.label} gets no gradient.")
            if found is not None and wanted is not None:
                expect_close(found, wanted, f"straight-through gradient of {entry.label}")


@seeded
def check_pruned_weights_stay_zero(subject: Subject) -> None:
    """Weights pruned before or after stay exactly zero under the quantizer."""
    for is_pruned_first in (True, False):
        for model in subject.models(TinyCNN, TinyMLP):
            optimizer = sgd(model)
            anatomy = Anatomy(model, optimizer)
            rules = [{"op_types": ["Conv2d", "Linear"], "sparsity": 0.6}]
            if is_pruned_first:
                pruner = LevelPruner(model, rules, optimizer)
                pruner.compress()
                quantizer = subject.compress(model, optimizer)
            else:
                quantizer = subject.compress(model, optimizer)
                pruner = LevelPruner(model, rules, optimizer)
                pruner.compress()
            for when in ("at once", "after training"):
                for entry in entries(pruner):
                    if entry.mask is not None:
                        what = f"pruned and quantized, {when}, {entry.label}"
                        expect_zero(entry.seen[entry.mask == 0], what)
                train(model, optimizer, 2, quantizer)
            quantizer.strip()
            pruner.strip()
            anatomy.expect_same(model, "after both were stripped", optimizer, values=False)


@seeded
def check_activations(subject: Subject) -> None:
    """Quantized inputs and outputs let the gradient through, and strip leaves no hook behind."""
    if not issubclass(subject.cls, Quantizer) or "quant_types" in subject.settings:
        return
    names = {kind.value: f"quantize_{kind.value}" for kind in QuantType}
    own = [k for k, n in names.items() if getattr(subject.cls, n) is not getattr(Quantizer, n)]
    if own == ["weight"]:
        return
    for model in subject.models(TinyCNN, TinyMLP):
        optimizer = sgd(model)
        anatomy = Anatomy(model, optimizer)
        quantizer = subject.compress(model, optimizer, quant_types=own)
        train(model, optimizer, 2, quantizer)
        for entry in entries(quantizer):
            _expect_gradient(entry.raw, f"with quantized activations, {entry.label}")
        result = outputs(model, model.make_input())
        expect(result.isfinite().all(), "outputs with quantized activations are not finite.")
        quantizer.strip()
        anatomy.expect_same(model, f"after strip() with {own} quantized", optimizer, values=False)


@seeded
def check_own_parameters_are_trained(subject: Subject) -> None:
    """Parameters that the algorithm put on its wrappers (a learned scale) move with training."""
    for model in subject.models():
        optimizer = sgd(model)
        groups = len(optimizer.param_groups)
        quantizer = subject.compress(model, optimizer)
        own = {
            f"{wrapper.name}.{name}": parameter
            for wrapper in quantizer.get_modules_wrapper()
            for name, parameter in wrapper.named_parameters()
            if parameter.requires_grad
        }
        before = {name: parameter.detach().clone() for name, parameter in own.items()}
        train(model, optimizer, 3, quantizer)
        for name, parameter in own.items():
            moved = not torch.equal(parameter.detach(), before[name])
            # The offset of an activation of which nothing is clipped has a gradient of zero.
            is_reached = parameter.grad is not None and not parameter.grad.any()
            expect(moved or is_reached, f"the parameter {name} did not change in training.")
        quantizer.strip()
        expect(len(optimizer.param_groups) == groups, "strip() left parameters in the optimizer.")


@seeded
def check_strip_leaves_float_weights(subject: Subject) -> None:
    """The plain model that strip leaves holds the float weights as they were trained."""
    for model in subject.models():
        optimizer = sgd(model)
        compressor = subject.compress(model, optimizer)
        train(model, optimizer, 2, compressor)
        trained = {name: value.detach().clone() for name, value in model.named_parameters()}
        compressor.strip()
        for name, value in model.named_parameters():
            expect_equal(value, trained[name], f"{name} after strip()")


QUANTIZER_CHECKS: tuple[Check, ...] = (
    check_own_parameters_are_trained,
    check_strip_leaves_float_weights,
    check_levels,
    check_layers_use_quantized_weights,
    check_forward_leaves_float_weights_alone,
    check_quantized_weights_follow,
    check_edits_of_quantized_weights_raise,
    check_float_weights_train,
    check_gradient_reaches_weights,
    check_straight_through_gradient,
    check_pruned_weights_stay_zero,
    check_activations,
)
