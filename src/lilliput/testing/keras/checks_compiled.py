"""Promises about compiled functions: they compute what a call computes, and are never out of date."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from lilliput.backends.keras.variables import to_array
from lilliput.core.compressor import Compressor
from lilliput.testing.expect import expect, expect_close
from lilliput.testing.keras.models import TinyCNN, TinyLSTM, TinyMLP, TinyUntold, make_batch
from lilliput.testing.keras.observe import entries, outputs, predictions, tensors_of
from lilliput.testing.keras.subject import Check, Subject, seeded, set_seed
from lilliput.testing.keras.train import compiled, fit, train


@seeded
def check_compiled_functions_follow(subject: Subject) -> None:
    """Compiled predictions equal a call, and see at once when masks or weights have changed."""
    for model in subject.models(TinyCNN, TinyLSTM):
        compiled(model, run_eagerly=False)
        compressor = subject.compress(model)
        expect_close(predictions(model), outputs(model), f"predictions of {model.name}")
        before = outputs(model)
        _change_in_place(compressor)
        expect(
            not np.array_equal(outputs(model), before), f"{model.name} computes with old values."
        )
        what = f"predictions of {model.name} after values changed in place"
        expect_close(predictions(model), outputs(model), what)


def _change_in_place(compressor: Compressor) -> None:
    """Prune a few more weights, or move them where there are no masks."""
    for wrapper in compressor.get_modules_wrapper():
        mask = wrapper.tensors().get("weight_mask")
        if mask is not None:
            changed = to_array(mask)
            changed.reshape(-1)[::3] = 0
            wrapper.set_attribute("weight_mask", changed)
    for entry in entries(compressor):
        if entry.mask is None:
            entry.variable.assign(entry.raw * -1.25 + 0.01)


@seeded
def check_functions_from_before_are_renewed(subject: Subject) -> None:
    """Functions that were compiled before compress() or strip() do not compute as they did then."""
    for model in subject.models(TinyMLP):
        compiled(model, run_eagerly=False)
        _use_all(model)
        compressor = subject.compress(model, model.optimizer)
        _expect_current(model, "after compress()")
        train(model, 1, compressor)
        _expect_current(model, "after training")
        compressor.strip()
        _expect_current(model, "after strip()")
        compressor.compress()
        _expect_current(model, "after compress() for a second time")


@seeded
def check_evaluation_before_training(subject: Subject) -> None:
    """What is learned in training or calibration holds in an evaluation that was compiled before."""
    for model in subject.models(TinyMLP, TinyUntold):
        compiled(model, run_eagerly=False)
        compressor = subject.compress(model, model.optimizer)
        _use_all(model)
        fit(model)
        _expect_current(model, f"after evaluating and training {model.name}")
        calibrate: Any = getattr(compressor, "calibrate", None)
        if calibrate is not None:
            calibrate([make_batch(model)[0]])
            _expect_current(model, f"after evaluating and calibrating {model.name}")


def _use_all(model: Any) -> None:
    """Have all functions compiled."""
    model.evaluate(*make_batch(model), verbose=0)
    predictions(model)


def _expect_current(model: Any, when: str) -> None:
    """Expect predictions and evaluation to agree with a call of the model."""
    inputs, target = make_batch(model)
    expected = outputs(model)
    expect_close(predictions(model), expected, f"predictions {when}")
    loss = np.float32(np.square(expected - target).mean())
    found = np.float32(model.evaluate(inputs, target, verbose=0))
    expect_close(found, loss, f"evaluate {when}")


@seeded
def check_jit_compile(subject: Subject) -> None:
    """Training compiled by XLA gives what training without it gives."""
    if keras.backend.backend() == "torch":  # there it is another compiler, and off by default
        return
    found = []
    for options in ({"run_eagerly": True}, {"run_eagerly": False, "jit_compile": True}):
        set_seed(2)
        for model in subject.models(TinyMLP):
            compressor = subject.compress(model, compiled(model, **options))
            train(model, 2, compressor)
            values = {entry.label: entry.raw for entry in entries(compressor)}
            found.append((values | tensors_of(compressor), outputs(model), predictions(model)))
    if found:
        (values, plain, _), (jit_values, jit, predicted) = found
        for key, value in values.items():
            expect_close(jit_values[key], value, f"{key} after training with jit_compile")
        expect_close(jit, plain, "outputs after training with jit_compile")
        expect_close(predicted, jit, "predictions with jit_compile")


COMPILED_CHECKS: tuple[Check, ...] = (
    check_compiled_functions_follow,
    check_functions_from_before_are_renewed,
    check_evaluation_before_training,
    check_jit_compile,
)
