"""Promises about precision: mixed or double, a model is compressed and trained in its own dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from lilliput.errors import UnsupportedModelError
from lilliput.testing.expect import expect, expect_zero
from lilliput.testing.keras.models import TinyCNN, TinyMLP, make_input, specimen_of
from lilliput.testing.keras.observe import (
    Anatomy,
    dtype_of,
    entries,
    expect_finite,
    outputs,
    predictions,
)
from lilliput.testing.keras.subject import Check, Subject, seeded
from lilliput.testing.keras.train import compiled, fit, gradients, train


@seeded
def check_mixed_precision(subject: Subject) -> None:
    """Variables stay float32, layers compute in half precision, and pruned weights stay zero."""
    for policy, kind in (("mixed_bfloat16", TinyCNN), ("mixed_float16", TinyMLP)):
        with _policy(policy):
            for model in subject.models(kind):
                _check_training(subject, model, "float32", policy)


@seeded
def check_double_precision(subject: Subject) -> None:
    """Models of float64 are compressed and trained in float64, or refused before anything happens."""
    is_off = keras.backend.backend() == "jax"  # unless a process asks for it
    if is_off or not subject.models(TinyMLP):
        return
    with _policy("float64"):
        model = TinyMLP()
        anatomy = Anatomy(model)
        try:
            subject.build(model)
        except UnsupportedModelError:
            anatomy.expect_same(model, "after float64 was refused")
        else:
            _check_training(subject, model, "float64", "float64")


def _check_training(subject: Subject, model: Any, dtype: str, policy: str) -> None:
    where = f"{model.name} in {policy}"
    wanted = dtype_of(specimen_of(model)()(make_input(model)))
    optimizer = compiled(model)
    anatomy = Anatomy(model, optimizer)
    compressor = subject.compress(model, optimizer)
    for wrapper in compressor.get_modules_wrapper():
        mask = wrapper.tensors().get("weight_mask")
        found = {dtype_of(x) for x in (wrapper.weight, mask) if x is not None}
        expect(found == {dtype}, f"{wrapper.name} of {where} has {found}, expected {dtype}.")
    pruned = {e.label: e.pruned for e in entries(compressor)}
    train(model, 2, compressor)
    for entry in entries(compressor):
        if entry.mask is not None and not subject.cls.regrows:
            expect_zero(entry.raw[pruned[entry.label]], f"pruned weights of {entry.label}, {where}")
    found_dtype = dtype_of(model(make_input(model)))
    expect(found_dtype == wanted, f"{where} returns {found_dtype}, expected {wanted}.")
    expect_finite(outputs(model), f"outputs of {where}")
    anatomy.expect_like_twin(model, compressor, f"in {policy}")
    by_weight = gradients(model)
    for entry in entries(compressor):
        gradient = by_weight.get(id(entry.variable))
        is_fine = gradient is not None and np.isfinite(gradient.astype("float32")).all()
        expect(is_fine, f"the gradient of {entry.label} of {where} is missing or not finite.")
    compressor.strip()


@seeded
def check_compiled_mixed_precision(subject: Subject) -> None:
    """The same in compiled functions."""
    with _policy("mixed_bfloat16"):
        for model in subject.models(TinyMLP):
            compiled(model, run_eagerly=False)
            compressor = subject.compress(model, model.optimizer)
            before = {e.label: e.raw for e in entries(compressor)}
            fit(model)
            for entry in entries(compressor):
                is_moving = bool((entry.raw != before[entry.label]).any())
                expect(is_moving, f"{entry.label} did not move in mixed precision.")
                if entry.mask is not None and not subject.cls.regrows:
                    expect_zero(entry.raw[entry.mask == 0], f"pruned weights of {entry.label}")
            expect_finite(predictions(model), "predictions in mixed precision")


@contextmanager
def _policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


PRECISION_CHECKS: tuple[Check, ...] = (
    check_mixed_precision,
    check_double_precision,
    check_compiled_mixed_precision,
)
