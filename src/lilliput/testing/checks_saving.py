"""Promises of every compressor: repeat exactly, and survive copying, saving and loading."""

from __future__ import annotations

import copy
import io
import tempfile

import torch

from lilliput.core.compressor import Compressor
from lilliput.core.state import CompressionState
from lilliput.testing.expect import expect_equal
from lilliput.testing.models import Specimen
from lilliput.testing.observe import (
    entries,
    expect_like_twin,
    expect_same_tensors,
    outputs,
    sgd,
    tensors_of,
    train,
)
from lilliput.testing.subject import Check, Subject, seeded, set_seed


@seeded
def check_plain_checkpoint_loads(subject: Subject) -> None:
    """A checkpoint of the plain model loads strictly, and stays compressed."""
    model = subject.model()
    pristine = type(model)()
    compressor = subject.compress(model)
    kept = tensors_of(compressor)
    model.load_state_dict(pristine.state_dict(), strict=True)
    for key, value in tensors_of(compressor).items():
        expect_equal(value, kept[key], f"{key} after loading a plain checkpoint")
    for entry in entries(compressor):
        loaded, saved = entry.raw.detach(), pristine.get_parameter(entry.label).detach()
        if entry.mask is not None:  # an eager pruner may have zeroed the rest already
            loaded, saved = loaded * entry.mask, saved * entry.mask
        expect_equal(loaded, saved, f"{entry.label} after loading a plain checkpoint")
    expect_like_twin(pristine, model, compressor, "after loading a plain checkpoint")


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
    expect_same_tensors(second, compressor, "after loading a compressed checkpoint")
    inputs = model.make_input()
    expect_equal(outputs(other, inputs), outputs(model, inputs), "outputs of the loaded model")


@seeded
def check_deepcopy(subject: Subject) -> None:
    """A copy of a model in training computes the same, and shares nothing with the original."""
    for model in subject.models():
        optimizer, inputs = sgd(model), model.make_input()
        compressor = subject.compress(model, optimizer)
        train(model, optimizer, 1, compressor)
        before = outputs(model, inputs)
        twin = copy.deepcopy(model)
        expect_equal(outputs(twin, inputs), before, f"outputs of a copied {type(model).__name__}")
        with torch.no_grad():
            for tensor in (*twin.parameters(), *twin.buffers()):
                tensor.zero_()
        expect_equal(outputs(model, inputs), before, "outputs after its copy was zeroed")


@seeded
def check_pickle(subject: Subject) -> None:
    """A whole compressed model can be written by ``torch.save``, as some trainers do."""
    model = subject.model()
    subject.compress(model)
    torch.save(model, io.BytesIO())


@seeded
def check_determinism(subject: Subject) -> None:
    """The same seed gives the same masks, weights and outputs, bit by bit."""
    first, second = _train_from_seed(subject), _train_from_seed(subject)
    expect_same_tensors(second[1], first[1], "from the same seed")
    inputs = first[0].make_input()
    what = "outputs of two runs from the same seed"
    expect_equal(outputs(second[0], inputs), outputs(first[0], inputs), what)


def _train_from_seed(subject: Subject) -> tuple[Specimen, Compressor]:
    set_seed(3)
    model = subject.model()
    optimizer = sgd(model)
    compressor = subject.compress(model, optimizer)
    train(model, optimizer, 2, compressor)
    return model, compressor


@seeded
def check_state_round_trip(subject: Subject) -> None:
    """A saved state, loaded into a fresh compressor, continues as if nothing had happened."""
    model, compressor = _train_from_seed(subject)
    compressor.update_epoch(0)
    other = type(model)()
    plain_keys = list(other.state_dict())
    optimizers = [compressor.optimizer or sgd(model), sgd(other)]
    second = subject.compress(other, optimizers[1])
    with tempfile.TemporaryDirectory() as folder:
        compressor.state().save(folder)
        state = CompressionState.load(folder)
    weights = model.state_dict()
    other.load_state_dict({key: weights[key] for key in plain_keys})
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    second.load_state(state)
    expect_same_tensors(second, compressor, "after load_state()")
    inputs = model.make_input()
    expect_equal(outputs(other, inputs), outputs(model, inputs), "outputs after load_state()")
    for each, its, optimizer in (
        (model, compressor, optimizers[0]),
        (other, second, optimizers[1]),
    ):
        set_seed(5)
        train(each, optimizer, 2, its)
        its.update_epoch(1)
        train(each, optimizer, 1, its)
    expect_same_tensors(second, compressor, "after load_state() and further training")
    what = "outputs after load_state() and further training"
    expect_equal(outputs(other, inputs), outputs(model, inputs), what)


SAVING_CHECKS: tuple[Check, ...] = (
    check_plain_checkpoint_loads,
    check_compressed_checkpoint_round_trips,
    check_deepcopy,
    check_pickle,
    check_determinism,
    check_state_round_trip,
)
