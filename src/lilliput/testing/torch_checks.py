"""Checks specific to torch: compile, export, copy, pickle, cast, and edits in place."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from lilliput.errors import StageError
from lilliput.frameworks import part_of
from lilliput.testing.checks_common import check_training_in
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.observe import (
    Anatomy,
    change_in_place,
    entries,
    expect_same_tensors,
    name_of,
)
from lilliput.testing.subject import Check, Subject, seeded

lab: Any = part_of("torch", "lab")
ways: Any = part_of("torch", "lab_ways")


@seeded
def check_compile(subject: Subject) -> None:
    """One graph, forward and backward as in eager mode, and no new graph when values change."""
    model = subject.model()
    compressor = subject.compress(model)
    inputs = model.make_input()
    lab.loss_of(model, inputs)  # ranges are determined in the first forward pass
    with ways.compiled(model) as compiled:
        _expect_same_step(compiled, model, inputs, "compiled")
        change_in_place(lab, compressor)
        with ways.without_new_graphs():
            what = "compiled, after values changed in place"
            _expect_same_step(compiled, model, inputs, what)


def _expect_same_step(compiled: Any, model: Any, inputs: Any, what: str) -> None:
    """Expect loss and gradients of the compiled model to equal those of the eager one."""
    (loss, gradients), (compiled_loss, compiled_gradients) = ways.steps(model, compiled, inputs)
    expect_close(compiled_loss, loss, f"{what}: loss")
    for name, gradient in gradients.items():
        expect(name in compiled_gradients, f"{what}: {name} has lost its gradient.")
        expect_close(compiled_gradients[name], gradient, f"{what}: gradient of {name}")


@seeded
def check_export(subject: Subject) -> None:
    """torch.export gives a program that computes the same as the model."""
    model = subject.model().eval()
    subject.compress(model)
    result = ways.exported_outputs(model, model.make_input())
    expect_close(result, lab.outputs(model), "outputs of the exported program")


@seeded
def check_dtypes(subject: Subject) -> None:
    """Models of other precision are compressed, computed and trained in their own dtype."""
    for dtype in ("bfloat16", "float64"):
        model = ways.cast(subject.model(), dtype)
        check_training_in(subject, model, dtype, dtype, lab.optimizer(model))


@seeded
def check_switching_dtype_and_mode(subject: Subject) -> None:
    """A compressed model can be cast, and switched between train and eval, at any time."""
    model = subject.model()
    anatomy = Anatomy(lab, model)
    compressor = subject.compress(model)
    for dtype in ("float64", "float32"):
        ways.cast(model, dtype)
        now = lab.weights(model)  # buffers are new objects after a cast
        anatomy.weights = {key: now[key] for key in anatomy.weights}
        for is_training in (True, False):
            model.train(is_training)
            anatomy.expect_like_twin(
                compressor, f"as torch.{dtype}, in mode training={is_training}"
            )
    lab.train(model, lab.sgd(model), 1, compressor)
    model.eval()
    anatomy.expect_like_twin(compressor, "after switching back and training")


@seeded
def check_compressed_checkpoint_round_trips(subject: Subject) -> None:
    """The state dict is loaded completely from a file into another compressed model."""
    model, other = subject.model(), subject.model()
    optimizer = lab.sgd(model)
    compressor = subject.compress(model, optimizer)
    lab.train(model, optimizer, 2, compressor)
    file = ways.save_weights(model)
    second = subject.compress(other)
    ways.load_weights(other, file)
    expect_same_tensors(lab, second, compressor, "after loading a compressed checkpoint")
    expect_equal(lab.outputs(other), lab.outputs(model), "outputs of the loaded model")


@seeded
def check_deepcopy(subject: Subject) -> None:
    """A copy of a model in training computes the same, and shares nothing with the original."""
    for model in subject.models():
        optimizer = lab.sgd(model)
        compressor = subject.compress(model, optimizer)
        lab.train(model, optimizer, 1, compressor)
        before = lab.outputs(model)
        twin = copy.deepcopy(model)
        expect_equal(lab.outputs(twin), before, f"outputs of a copied {name_of(model)}")
        ways.zero(twin)
        expect_equal(lab.outputs(model), before, "outputs after its copy was zeroed")


@seeded
def check_pickle(subject: Subject) -> None:
    """A whole compressed model can be written by ``torch.save``, as some trainers do."""
    model = subject.model()
    subject.compress(model)
    ways.save_whole(model)


@seeded
def check_writes_reach_the_weights(subject: Subject) -> None:
    """A masked layer exposes its Parameter: writes to it persist, and its gradient is visible.

    If weights are computed instead, editing them raises an error.
    """
    if subject.cls.computes_weights:
        check_edits_of_computed_weights_raise(subject)
        return
    for model in subject.models():
        compressor = subject.compress(model)
        for entry in entries(lab, compressor, with_bias=True):
            shown = model.get_parameter(entry.label)
            expect(shown is entry.weight, f"get_parameter({entry.label!r}) is not the Parameter.")
            shown.data.fill_(0.25)  # .data changes no version counter
            wanted = np.full_like(entry.raw, 0.25)
            wanted = wanted if entry.mask is None else wanted * entry.mask
            seen = lab.read(model.get_parameter(entry.label))
            expect_equal(seen, wanted, f"{entry.label} after a write to it")
        lab.loss_of(model, model.make_input()).backward()
        for entry in entries(lab, compressor):
            gradient = model.get_parameter(entry.label).grad
            expect(gradient is entry.weight.grad, f"the gradient of {entry.label} is not shown.")


@seeded
def check_edits_of_computed_weights_raise(subject: Subject) -> None:
    """Computed weights cannot be edited by mistake; their Parameter is accessible and can be edited."""
    for model in subject.models("cnn", "mlp"):
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


COMMON_CHECKS: tuple[Check, ...] = (
    check_dtypes,
    check_switching_dtype_and_mode,
    check_compressed_checkpoint_round_trips,
    check_deepcopy,
    check_pickle,
    check_compile,
    check_export,
)
PRUNER_CHECKS: tuple[Check, ...] = (check_writes_reach_the_weights, *COMMON_CHECKS)
QUANTIZER_CHECKS: tuple[Check, ...] = (check_edits_of_computed_weights_raise, *COMMON_CHECKS)
