"""Checks for every compressor: reproducible results, and resuming from files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lilliput.core.compressor import Compressor
from lilliput.core.state import CompressionState
from lilliput.testing.expect import expect_equal
from lilliput.testing.lab import Model, Optimizer
from lilliput.testing.observe import (
    Anatomy,
    entries,
    expect_same_tensors,
    tensors_of,
)
from lilliput.testing.subject import Check, Subject, seeded


@seeded
def check_plain_checkpoint_loads(subject: Subject) -> None:
    """A checkpoint of the plain model loads strictly, and stays compressed."""
    lab = subject.lab
    for model in subject.models():
        pristine = lab.like(model)
        anatomy = Anatomy(lab, model)
        compressor = subject.compress(model)
        kept = tensors_of(lab, compressor)
        with tempfile.TemporaryDirectory() as folder:
            lab.load_plain(model, pristine, Path(folder))
        for key, value in tensors_of(lab, compressor).items():
            expect_equal(value, kept[key], f"{key} after loading a plain checkpoint")
        masks = {id(e.weight): e.mask for e in entries(lab, compressor, True) if e.mask is not None}
        for key, weight in lab.weights(pristine).items():
            mine = anatomy.weights[key]
            mask = masks.get(id(mine), 1)  # an eager pruner may have already zeroed the rest
            loaded, saved = lab.read(mine) * mask, lab.read(weight) * mask
            expect_equal(loaded, saved, f"{key} after loading a plain checkpoint")
        anatomy.expect_like_twin(compressor, "after loading a plain checkpoint")


@seeded
def check_determinism(subject: Subject) -> None:
    """The same seed gives the same masks, weights and outputs, bit by bit."""
    lab = subject.lab
    (model, _, first), (other, _, second) = _train_from_seed(subject), _train_from_seed(subject)
    expect_same_tensors(lab, second, first, "from the same seed")
    what = "outputs of two runs from the same seed"
    expect_equal(lab.outputs(other), lab.outputs(model), what)


def _train_from_seed(subject: Subject) -> tuple[Model, Optimizer, Compressor]:
    """Return a briefly trained model, its optimizer and compressor; the same each time."""
    subject.lab.set_seed(3)
    model = subject.model()
    return model, *subject.train(model)


@seeded
def check_state_round_trip(subject: Subject) -> None:
    """A saved state, loaded into a fresh compressor, continues as if nothing had happened."""
    lab = subject.lab
    model, optimizer, compressor = _train_from_seed(subject)
    compressor.update_epoch(0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        compressor.state().save(place / "state")
        other, other_optimizer, second = lab.resume(model, optimizer, subject.compress, place)
        second.load_state(CompressionState.load(place / "state"))
    expect_same_tensors(lab, second, compressor, "after load_state()")
    expect_equal(lab.outputs(other), lab.outputs(model), "outputs after load_state()")
    runs = (model, optimizer, compressor), (other, other_optimizer, second)
    for each, its_optimizer, its in runs:
        lab.set_seed(5)
        lab.train(each, its_optimizer, lab.STEPS, its)
        its.update_epoch(1)
        lab.train(each, its_optimizer, 1, its)
    when = "after load_state() and further training"
    expect_same_tensors(lab, second, compressor, when)
    for one, two in zip(entries(lab, compressor), entries(lab, second), strict=True):
        expect_equal(two.raw, one.raw, f"{one.label} {when}")
    expect_equal(lab.outputs(other), lab.outputs(model), f"outputs {when}")


SAVING_CHECKS: tuple[Check, ...] = (
    check_plain_checkpoint_loads,
    check_determinism,
    check_state_round_trip,
)
