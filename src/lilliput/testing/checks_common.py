"""Promises of every compressor: leave no trace, refuse nonsense, work in any dtype and mode."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.observe import (
    Anatomy,
    entries,
    expect_like_twin,
    outputs,
    sgd,
    train,
)
from lilliput.testing.subject import Check, Subject, seeded


@seeded
def check_strip_restores_model(subject: Subject) -> None:
    """Strip gives back the same Parameters, classes, modules and keys, and leaves no hook."""
    for model in subject.models():
        optimizer = sgd(model)
        anatomy = Anatomy(model, optimizer)
        compressor = subject.compress(model, optimizer)
        train(model, optimizer, 2, compressor)
        stripped = compressor.strip()
        where = f"after strip() of {type(model).__name__}"
        expect(stripped is model, f"{where}, strip() returned another model.")
        anatomy.expect_same(model, where, optimizer, values=False)
        if isinstance(lstm := getattr(model, "lstm", None), nn.RNNBase):
            flat = zip(lstm._flat_weights, lstm._flat_weights_names, strict=True)
            is_same = all(weight is lstm._parameters[name] for weight, name in flat)
            expect(is_same, f"{where}, the LSTM computes with other weights than its parameters.")
        compressor.strip()
        anatomy.expect_same(model, f"{where} for a second time", optimizer, values=False)


@seeded
def check_compressing_again_changes_nothing(subject: Subject) -> None:
    """A second compress() is harmless; compress after strip continues where it was."""
    model = subject.model()
    inputs = model.make_input()
    compressor = subject.compress(model)
    before, keys = outputs(model, inputs), list(model.state_dict())
    expect(compressor.compress() is model, "compress() returned another model.")
    expect(list(model.state_dict()) == keys, "a second compress() changed the state-dict keys.")
    expect_equal(outputs(model, inputs), before, "outputs after a second compress()")
    compressor.strip()
    compressor.compress()
    expect(list(model.state_dict()) == keys, "strip() and compress() changed the state-dict keys.")
    if subject.cls.kind == "pruner":  # quantizing twice may well round twice
        expect_close(outputs(model, inputs), before, "outputs after strip() and compress()")


@seeded
def check_bad_config(subject: Subject) -> None:
    """A config list that makes no sense is a ConfigError, and the model is left untouched."""
    bad: dict[str, Any] = {
        "an unknown layer type": subject.rules(op_types=["Conv9d"]),
        "an unknown layer name": subject.rules(op_names=["no.such.layer"]),
        "an empty list": [],
        "a rule that is no dict": [5],
    }
    if subject.cls.validate_config is Compressor.validate_config:
        bad["an unknown key"] = subject.rules(no_such_key=1)
    if subject.sparsity_key:
        bad["80 as a sparsity"] = subject.rules(**{subject.sparsity_key: 80})
    if "quant_bits" in subject.cls.rule.model_fields:
        bad["0 bits"] = subject.rules(quant_bits=0)
    model = subject.model()
    optimizer = sgd(model)
    anatomy = Anatomy(model, optimizer)
    for what, rules in bad.items():
        try:
            subject.build_from(model, rules, optimizer).compress(model)
        except ConfigError:
            anatomy.expect_same(model, f"after {what} was refused", optimizer)
        else:
            expect(False, f"{what} was accepted, expected a ConfigError.")


@seeded
def check_dtypes(subject: Subject) -> None:
    """Models of other precision are compressed, computed and trained in their own dtype."""
    for dtype in (torch.bfloat16, torch.float64):
        model = subject.model().to(dtype)
        pristine = copy.deepcopy(model)
        optimizer = sgd(model)
        compressor = subject.compress(model, optimizer)
        for entry in entries(compressor):
            tensors = (entry.raw, entry.seen, entry.mask)
            found = {tensor.dtype for tensor in tensors if tensor is not None}
            expect(found == {dtype}, f"{entry.label} of a {dtype} model has {found}.")
        train(model, optimizer, 2, compressor)
        expect(outputs(model, model.make_input()).isfinite().all(), f"{dtype}: outputs not finite.")
        expect_like_twin(pristine, model, compressor, f"in {dtype}")


@seeded
def check_switching_dtype_and_mode(subject: Subject) -> None:
    """A compressed model can be cast, and switched between train and eval, at any time."""
    model = subject.model()
    pristine = copy.deepcopy(model)
    compressor = subject.compress(model)
    for dtype in (torch.float64, torch.float32):
        model.to(dtype)
        pristine.to(dtype)
        for is_training in (True, False):
            model.train(is_training)
            expect_like_twin(pristine, model, compressor, f"as {dtype}, training={is_training}")
    optimizer = sgd(model)
    train(model, optimizer, 1, compressor)
    model.eval()
    expect_like_twin(pristine, model, compressor, "after switching back and training")


@seeded
def check_repeated_updates(subject: Subject) -> None:
    """update_epoch() and step() may be called any number of times, with or without training."""
    model = subject.model()
    optimizer = sgd(model)
    compressor = subject.compress(model, optimizer)
    for epoch in range(3):
        compressor.update_epoch(epoch)
        compressor.update_epoch(epoch)
        train(model, optimizer, 1, compressor)
        compressor.step()
        compressor.step()
    expect(outputs(model, model.make_input()).isfinite().all(), "outputs are not finite.")
    compressor.strip()
    train(model, optimizer, 1)


COMMON_CHECKS: tuple[Check, ...] = (
    check_strip_restores_model,
    check_compressing_again_changes_nothing,
    check_bad_config,
    check_dtypes,
    check_switching_dtype_and_mode,
    check_repeated_updates,
)
