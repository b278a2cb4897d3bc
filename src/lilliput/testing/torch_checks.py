"""Promises that only torch can ask for: compile, export, copy, pickle, cast, and edits in place."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lilliput.errors import StageError
from lilliput.frameworks.torch import lab as lab
from lilliput.frameworks.torch.lab import loss_of, outputs, read, sgd, train
from lilliput.frameworks.torch.lab_models import Specimen
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


@seeded
def check_compile(subject: Subject) -> None:
    """One graph, forward and backward as in eager mode, and no new graph when values change."""
    model = subject.model()
    compressor = subject.compress(model)
    inputs = model.make_input()
    loss_of(model, inputs)  # ranges are found in the first forward
    with _clean_dynamo():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        _expect_same_step(compiled, model, inputs, "compiled")
        change_in_place(lab, compressor)
        with torch._dynamo.config.patch(error_on_recompile=True):
            what = "compiled, after values changed in place"
            _expect_same_step(compiled, model, inputs, what)


def _expect_same_step(compiled: Any, model: Specimen, inputs: Tensor, what: str) -> None:
    """Expect loss and gradients of the compiled model to equal those of the eager one."""
    results = []
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for each in (model, compiled):
        model.zero_grad()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])  # running statistics
        loss = loss_of(each, inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        grads = {k: read(p.grad) for k, p in model.named_parameters() if p.grad is not None}
        results.append((read(loss), grads))
    (loss, gradients), (compiled_loss, compiled_gradients) = results
    expect_close(compiled_loss, loss, f"{what}: loss")
    for name, gradient in gradients.items():
        expect(name in compiled_gradients, f"{what}: {name} has lost its gradient.")
        expect_close(compiled_gradients[name], gradient, f"{what}: gradient of {name}")


@contextmanager
def _clean_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():
            # While tracing an autograd.Function, dynamo does what it warns others of.
            warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
            yield
    finally:
        torch._dynamo.reset()


@seeded
def check_export(subject: Subject) -> None:
    """torch.export gives a program that computes what the model computes."""
    model = subject.model().eval()
    subject.compress(model)
    inputs = model.make_input()
    program = torch.export.export(model, (inputs,))
    with torch.no_grad():
        result = read(program.module()(inputs))
    expect_close(result, outputs(model), "outputs of the exported program")


@seeded
def check_dtypes(subject: Subject) -> None:
    """Models of other precision are compressed, computed and trained in their own dtype."""
    for dtype in (torch.bfloat16, torch.float64):
        model = subject.model().to(dtype)
        name = str(dtype).removeprefix("torch.")
        check_training_in(subject, model, name, name, lab.optimizer(model))


@seeded
def check_switching_dtype_and_mode(subject: Subject) -> None:
    """A compressed model can be cast, and switched between train and eval, at any time."""
    model = subject.model()
    anatomy = Anatomy(lab, model)
    compressor = subject.compress(model)
    for dtype in (torch.float64, torch.float32):
        model.to(dtype)
        now = lab.weights(model)  # buffers are others after a cast
        anatomy.weights = {key: now[key] for key in anatomy.weights}
        for is_training in (True, False):
            model.train(is_training)
            anatomy.expect_like_twin(compressor, f"as {dtype}, in mode training={is_training}")
    train(model, sgd(model), 1, compressor)
    model.eval()
    anatomy.expect_like_twin(compressor, "after switching back and training")


@seeded
def check_compressed_checkpoint_round_trips(subject: Subject) -> None:
    """The state dict goes through a file into another compressed model, and all of it arrives."""
    model, other = subject.model(), subject.model()
    optimizer = sgd(model)
    compressor = subject.compress(model, optimizer)
    train(model, optimizer, 2, compressor)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    second = subject.compress(other)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    expect_same_tensors(lab, second, compressor, "after loading a compressed checkpoint")
    expect_equal(outputs(other), outputs(model), "outputs of the loaded model")


@seeded
def check_deepcopy(subject: Subject) -> None:
    """A copy of a model in training computes the same, and shares nothing with the original."""
    for model in subject.models():
        optimizer = sgd(model)
        compressor = subject.compress(model, optimizer)
        train(model, optimizer, 1, compressor)
        before = outputs(model)
        twin = copy.deepcopy(model)
        expect_equal(outputs(twin), before, f"outputs of a copied {name_of(model)}")
        with torch.no_grad():
            for tensor in (*twin.parameters(), *twin.buffers()):
                tensor.zero_()
        expect_equal(outputs(model), before, "outputs after its copy was zeroed")


@seeded
def check_pickle(subject: Subject) -> None:
    """A whole compressed model can be written by ``torch.save``, as some trainers do."""
    model = subject.model()
    subject.compress(model)
    torch.save(model, io.BytesIO())


@seeded
def check_writes_reach_the_weights(subject: Subject) -> None:
    """A masked layer shows its Parameter: what is written to it stays, and its gradient is seen.

    Where weights are computed instead, an edit of them is refused.
    """
    if subject.cls.computes_weights:
        check_edits_of_computed_weights_raise(subject)
        return
    for model in subject.models():
        compressor = subject.compress(model)
        for entry in entries(lab, compressor, with_bias=True):
            shown = model.get_parameter(entry.label)
            expect(shown is entry.weight, f"get_parameter({entry.label!r}) is not the Parameter.")
            shown.data.fill_(0.25)  # .data moves no version counter
            wanted = torch.full_like(shown, 0.25)
            wanted = wanted if entry.mask_tensor is None else wanted * entry.mask_tensor
            seen = read(model.get_parameter(entry.label))
            expect_equal(seen, read(wanted), f"{entry.label} after a write to it")
        loss_of(model, model.make_input()).backward()  # type: ignore[no-untyped-call]
        for entry in entries(lab, compressor):
            gradient = model.get_parameter(entry.label).grad
            expect(gradient is entry.weight.grad, f"the gradient of {entry.label} is not shown.")


@seeded
def check_edits_of_computed_weights_raise(subject: Subject) -> None:
    """What a layer computes with cannot be edited by mistake; its Parameter can be had and edited."""
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
