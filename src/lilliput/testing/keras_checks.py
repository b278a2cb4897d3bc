"""Checks specific to Keras: every way to train, compiled functions, precision policies, model files."""

from __future__ import annotations

import copy
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks import part_of
from lilliput.testing.checks_common import check_training_in
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.observe import (
    Anatomy,
    Watch,
    change_in_place,
    entries,
    expect_finite,
    tensors_of,
)
from lilliput.testing.subject import Check, Subject, seeded

lab: Any = part_of("keras", "lab")
make_batch: Callable[[Any], Any] = part_of("keras", "lab_models").make_batch

# -- training


@seeded
def check_fit_keeps_zeros(subject: Subject) -> None:
    """Compiled ``fit`` keeps pruned weights at zero: with the callback, or with the optimizer alone."""
    if subject.cls.regrows:
        return
    for optimizer, is_given in ((lab.sgd(weight_decay=0.01), True), (lab.adamw(), False)):
        for model in subject.models("mlp"):
            lab.compiled(model, optimizer, run_eagerly=False)
            lab.fit(model)  # so that the optimizer has state for all weights
            compressor = subject.compress(model, optimizer if is_given else None)
            watch = Watch(lab, compressor)
            lab.fit(model, 2, None if is_given else [compressor.callback()])
            how = "optimizer" if is_given else "callback"
            watch.expect_zeros(f"after fit with {optimizer.name}, followed by the {how}")
            watch.expect_training(f"after fit with {optimizer.name}, followed by the {how}")


@seeded
def check_train_on_batch_keeps_zeros(subject: Subject) -> None:
    """Compiled ``train_on_batch`` keeps pruned weights at zero."""
    if subject.cls.regrows:
        return
    for model in subject.models("mlp"):
        optimizer = lab.compiled(model, run_eagerly=False)
        compressor = subject.compress(model, optimizer)
        watch = Watch(lab, compressor)
        lab.train(model, optimizer, 3, compressor)
        watch.expect_zeros("after train_on_batch")
        watch.expect_training("after train_on_batch")


@seeded
def check_training_is_followed(subject: Subject) -> None:
    """Every step is counted once and every epoch reported, whatever follows the training."""
    for has_optimizer in (True, False):
        for has_callback in (True, False):
            for model in subject.models("mlp"):
                optimizer = lab.compiled(model)
                compressor = subject.compress(model, optimizer if has_optimizer else None)
                # A ``make`` may omit the optimizer: then only the callback follows.
                is_bound = compressor.optimizer is not None if subject.make else has_optimizer
                counts = _count_calls(compressor)
                callbacks = [compressor.callback()] if has_callback else []
                lab.fit(model, 2, callbacks)
                when = f"optimizer {is_bound}, callback {has_callback}: after 2 epochs of 2 steps"
                steps = 4 if is_bound or has_callback else 0
                expect(counts["steps"] == steps, f"{when}, {counts['steps']} were counted.")
                epochs = [0, 1] if has_callback else []
                expect(counts["epochs"] == epochs, f"{when}, epochs {counts['epochs']} were seen.")
                lab.train(model, optimizer, 1)
                steps += 1 if is_bound else 0
                what = f"{when} and train_on_batch, {counts['steps']} were counted."
                expect(counts["steps"] == steps, what)


def _count_calls(compressor: Any) -> dict[str, Any]:
    """Count the calls of ``step`` and ``update_epoch`` of this one object from now on."""
    counts: dict[str, Any] = {"steps": 0, "epochs": []}
    step, update_epoch = compressor.step, compressor.update_epoch

    def counting_step() -> None:
        counts["steps"] += 1
        step()

    def counting_update(epoch: int) -> None:
        counts["epochs"].append(epoch)
        update_epoch(epoch)

    compressor.step, compressor.update_epoch = counting_step, counting_update
    return counts


@seeded
def check_own_loops(subject: Subject) -> None:
    """Custom training loops train a compressed model: eager, in a graph, stateless."""
    for how, loop in part_of("keras", "lab_loops").own_loops().items():
        for model in subject.models("mlp"):
            anatomy = Anatomy(lab, model)
            optimizer = lab.sgd()
            optimizer.build(model.trainable_variables)
            compressor = subject.compress(model, optimizer)
            watch = Watch(lab, compressor)
            loop(model, compressor, 3)
            if compressor.kind == "pruner" and not subject.cls.regrows:
                watch.expect_zeros(f"in {how}")
            watch.expect_training(f"in {how}")
            compressor.strip()
            anatomy.expect_same(f"after {how} and strip()", values=False)


# -- compiled functions


@seeded
def check_compiled_functions_follow(subject: Subject) -> None:
    """Compiled predictions equal a call, and immediately reflect changed masks or weights."""
    for model in subject.models("cnn", "recurrent"):
        lab.compiled(model, run_eagerly=False)
        compressor = subject.compress(model)
        before = lab.outputs(model)
        expect_close(lab.predictions(model), before, f"predictions of {model.name}")
        change_in_place(lab, compressor)
        changed = lab.outputs(model)
        expect(not np.array_equal(changed, before), f"{model.name} computes with old values.")
        what = f"predictions of {model.name} after values changed in place"
        expect_close(lab.predictions(model), changed, what)


@seeded
def check_functions_from_before_are_renewed(subject: Subject) -> None:
    """Functions compiled before compress() or strip() are not used with old behaviour afterwards."""
    for model in subject.models("mlp"):
        optimizer = lab.compiled(model, run_eagerly=False)
        _use_all(model)
        compressor = subject.compress(model, optimizer)
        _expect_current(model, "after compress()")
        lab.train(model, optimizer, 1, compressor)
        _expect_current(model, "after training")
        compressor.strip()
        _expect_current(model, "after strip()")
        compressor.compress()
        _expect_current(model, "after compress() for a second time")


@seeded
def check_evaluation_before_training(subject: Subject) -> None:
    """Values learned in training or calibration apply in an evaluation that was compiled before."""
    for model in subject.models("mlp", "untold"):
        compressor = subject.compress(model, lab.compiled(model, run_eagerly=False))
        _use_all(model)
        lab.fit(model)
        _expect_current(model, f"after evaluating and training {model.name}")
        calibrate: Any = getattr(compressor, "calibrate", None)
        if calibrate is not None:
            calibrate([make_batch(model)[0]])
            _expect_current(model, f"after evaluating and calibrating {model.name}")


def _use_all(model: Any) -> None:
    """Compile all functions."""
    model.evaluate(*make_batch(model), verbose=0)
    lab.predictions(model)


def _expect_current(model: Any, when: str) -> None:
    """Expect predictions and evaluation to agree with a call of the model."""
    inputs, target = make_batch(model)
    expected = lab.outputs(model)
    expect_close(lab.predictions(model), expected, f"predictions {when}")
    loss = np.float32(np.square(expected - target).mean())
    found = np.float32(model.evaluate(inputs, target, verbose=0))
    expect_close(found, loss, f"evaluate {when}")


@seeded
def check_jit_compile(subject: Subject) -> None:
    """Training compiled by XLA has the same result as training without it."""
    if lab.backend_name() == "torch":  # there it is another compiler, and off by default
        return
    found = []
    for options in ({"run_eagerly": True}, {"run_eagerly": False, "jit_compile": True}):
        lab.set_seed(2)
        for model in subject.models("mlp"):
            optimizer = lab.compiled(model, **options)
            compressor = subject.compress(model, optimizer)
            lab.train(model, optimizer, 2, compressor)
            values = {entry.label: entry.raw for entry in entries(lab, compressor)}
            values |= tensors_of(lab, compressor)
            found.append((values, lab.outputs(model), lab.predictions(model)))
    if found:
        (values, plain, _), (jit_values, jit, predicted) = found
        for key, value in values.items():
            expect_close(jit_values[key], value, f"{key} after training with jit_compile")
        expect_close(jit, plain, "outputs after training with jit_compile")
        expect_close(predicted, jit, "predictions with jit_compile")


# -- precision


@seeded
def check_mixed_precision(subject: Subject) -> None:
    """Variables stay float32, layers compute in half precision, and pruned weights stay zero."""
    for half, kind in (("bfloat16", "cnn"), ("float16", "mlp")):
        with lab.policy(f"mixed_{half}"):
            for model in subject.models(kind):
                check_training_in(subject, model, "float32", half, _used_optimizer(model))


@seeded
def check_double_precision(subject: Subject) -> None:
    """float64 models are compressed and trained in float64, or rejected before anything changes."""
    is_off = lab.backend_name() == "jax"  # unless a process enables it
    if is_off or not subject.models("mlp"):
        return
    with lab.policy("float64"):
        model = lab.SPECIMENS["mlp"]()
        anatomy = Anatomy(lab, model)
        try:
            subject.build(model)
        except UnsupportedModelError:
            anatomy.expect_same("after float64 was refused")
        else:
            check_training_in(subject, model, "float64", "float64", _used_optimizer(model))


def _used_optimizer(model: Any) -> Any:
    """Return an optimizer after one step, because objects created in the first step belong to the model."""
    optimizer = lab.optimizer(model)
    lab.train(model, optimizer, 1)
    return optimizer


@seeded
def check_compiled_mixed_precision(subject: Subject) -> None:
    """The same in compiled functions."""
    with lab.policy("mixed_bfloat16"):
        for model in subject.models("mlp"):
            optimizer = lab.compiled(model, run_eagerly=False)
            compressor = subject.compress(model, optimizer)
            watch = Watch(lab, compressor)
            lab.fit(model)
            watch.expect_training("in mixed precision")
            if compressor.kind == "pruner" and not subject.cls.regrows:
                watch.expect_zeros("in mixed precision")
            expect_finite(lab.predictions(model), "predictions in mixed precision")


# -- files


@seeded
def check_compressed_model_saves_plain_file(subject: Subject) -> None:
    """Saving a compressed model writes the file of a plain one, with pruned weights at zero."""
    for model in subject.models():
        optimizer = lab.compiled(model)
        anatomy = Anatomy(lab, model)
        compressor = subject.compress(model)
        lab.train(model, optimizer, 1, compressor)
        before, tensors = lab.outputs(model), tensors_of(lab, compressor)
        loaded = _through_file(model)
        where = f"{model.name} from the file of a compressed model"
        expect(len(loaded.weights) == len(anatomy.weights), f"{where}: other weights.")
        for (key, value), saved in zip(anatomy.read().items(), loaded.weights, strict=True):
            expect_equal(lab.read(saved), value, f"{where}, {key}")
        if subject.cls.kind == "pruner" and not subject.cls.computes_weights:
            expect_close(lab.outputs(loaded), before, f"{where}, outputs")
            expect_close(
                lab.outputs(copy.deepcopy(model)), before, f"outputs of a copied {model.name}"
            )
        expect_equal(lab.outputs(model), before, f"outputs of {model.name} after it was saved")
        for key, value in tensors_of(lab, compressor).items():
            expect_equal(value, tensors[key], f"{key} after its model was saved")


@seeded
def check_stripped_model_saves_plain_file(subject: Subject) -> None:
    """The model after strip is saved and loaded without any reference to this package in the file."""
    for model in subject.models("cnn", "mlp"):
        optimizer = lab.compiled(model)
        compressor = subject.compress(model, optimizer)
        lab.train(model, optimizer, 1, compressor)
        compressor.strip()
        loaded = _through_file(model, is_foreign=True)
        expect_equal(
            lab.outputs(loaded), lab.outputs(model), f"outputs of {model.name} from its file"
        )


def _through_file(model: Any, is_foreign: bool = False) -> Any:
    """Return a model that was saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        if is_foreign:
            with zipfile.ZipFile(path) as file:
                text = json.dumps(json.loads(file.read("config.json")))
            expect("lilliput" not in text, f"the file of {model.name} names Lilliput.")
        return lab.load(path)


QUANTIZER_CHECKS: tuple[Check, ...] = (
    check_training_is_followed,
    check_own_loops,
    check_compressed_model_saves_plain_file,
    check_stripped_model_saves_plain_file,
    check_compiled_functions_follow,
    check_functions_from_before_are_renewed,
    check_evaluation_before_training,
    check_jit_compile,
    check_mixed_precision,
    check_double_precision,
    check_compiled_mixed_precision,
)
PRUNER_CHECKS: tuple[Check, ...] = (
    check_fit_keeps_zeros,
    check_train_on_batch_keeps_zeros,
    *QUANTIZER_CHECKS,
)
