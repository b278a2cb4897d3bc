"""Promises about how the layer is used: compiled, exported, inside attention, recurrent or tied."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lilliput.core.compressor import Compressor
from lilliput.testing.expect import expect, expect_close
from lilliput.testing.models import Specimen, TinyLSTM, TinyTied, TinyTransformer
from lilliput.testing.observe import (
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
def check_compile(subject: Subject) -> None:
    """One graph, forward and backward as in eager mode, and no new graph when values change."""
    model = subject.model()
    compressor = subject.compress(model)
    inputs = model.make_input()
    loss_of(model, inputs)  # ranges are found in the first forward
    with _clean_dynamo():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        _expect_same_step(compiled, model, inputs, "compiled")
        _change_in_place(compressor)
        with torch._dynamo.config.patch(error_on_recompile=True):
            what = "compiled, after values changed in place"
            _expect_same_step(compiled, model, inputs, what)


@seeded
def check_export(subject: Subject) -> None:
    """torch.export gives a program that computes what the model computes."""
    model = subject.model().eval()
    subject.compress(model)
    inputs = model.make_input()
    program = torch.export.export(model, (inputs,))
    with torch.no_grad():
        result = program.module()(inputs)
    expect_close(result, outputs(model, inputs), "outputs of the exported program")


@seeded
def check_attention(subject: Subject) -> None:
    """Attention and encoder layers compute with compressed weights, on torch's fast path too."""
    for model in subject.models(TinyTransformer):
        _check_against_twin(subject, model)


@seeded
def check_recurrent(subject: Subject) -> None:
    """Recurrent layers compute with compressed weights."""
    for model in subject.models(TinyLSTM):
        _check_against_twin(subject, model)


@seeded
def check_tied_weights(subject: Subject) -> None:
    """A weight with two owners is compressed once, for both, and still shared afterwards."""
    for model in subject.models(TinyTied):
        compressor = _check_against_twin(subject, model)
        layers = [wrapper.layer_info for wrapper in compressor.get_modules_wrapper()]
        holding = [x.name for x in layers if {"embed", "out"} & {o.path for o in x.owners}]
        if not holding:
            continue
        expect(len(holding) == 1, f"the tied weight has {len(holding)} wrappers: {holding}.")
        owners: list[Any] = [model.get_submodule("embed"), model.get_submodule("out")]
        seen = [owner.weight.detach() for owner in owners]
        expect_close(seen[1], seen[0], "the tied weight as its two owners see it")
        compressor.strip()
        is_tied = owners[0].weight is owners[1].weight
        expect(is_tied, "the weight is no longer tied after strip().")


def _check_against_twin(subject: Subject, model: Specimen) -> Compressor:
    """Compare a model with a plain one that holds the weights it shows, in both modes."""
    pristine, optimizer, inputs = copy.deepcopy(model), sgd(model), model.make_input()
    compressor = subject.compress(model, optimizer)
    for when in ("after compress()", "after training", "after loading a plain checkpoint"):
        if not quantizes_activations(compressor):
            twin = plain_twin(pristine, model, compressor)
            for is_training in (True, False):
                what = f"{when}, outputs (training={is_training}) against a plain model with the "
                what += "compressed weights"
                expected = outputs(twin, inputs, is_training)
                expect_close(outputs(model, inputs, is_training), expected, what)
        if when == "after compress()":
            train(model, optimizer, 2, compressor)
        else:  # weights behind the masks are no longer zero
            model.load_state_dict(pristine.state_dict())
    return compressor


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
        results.append((loss.detach(), _gradients(model)))
    (loss, gradients), (compiled_loss, compiled_gradients) = results
    expect_close(compiled_loss, loss, f"{what}: loss")
    for name, gradient in gradients.items():
        expect(name in compiled_gradients, f"{what}: {name} has lost its gradient.")
        expect_close(compiled_gradients[name], gradient, f"{what}: gradient of {name}")


def _gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


@torch.no_grad()
def _change_in_place(compressor: Compressor) -> None:
    """Prune a few more weights, or move them where there are no masks."""
    for entry in entries(compressor):
        if entry.mask is None:
            entry.raw.mul_(1.25).add_(0.01)
        else:
            entry.mask.view(-1)[::3] = 0


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


GRAPH_CHECKS: tuple[Check, ...] = (
    check_compile,
    check_export,
    check_attention,
    check_recurrent,
    check_tied_weights,
)
