"""Promises of every compressor: leave no trace, survive copying and saving, repeat exactly."""

from __future__ import annotations

import copy
import io
import tempfile
from typing import Any

import torch
from torch import nn

from lilliput.core.compressor import Compressor
from lilliput.core.state import CompressionState
from lilliput.errors import ConfigError, StageError
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.models import Specimen
from lilliput.testing.observe import (
    Anatomy,
    entries,
    expect_same_tensors,
    outputs,
    plain_twin,
    quantizes_activations,
    sgd,
    tensors_of,
    train,
)
from lilliput.testing.subject import Check, Subject, seeded, set_seed


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
def check_strip_keeps_outputs(subject: Subject) -> None:
    """The plain model that strip leaves computes what the compressed one computed."""
    for is_loaded in (False, True):
        for model in subject.models():
            plain, optimizer, inputs = copy.deepcopy(model), sgd(model), model.make_input()
            compressor = subject.compress(model, optimizer)
            train(model, optimizer, 2, compressor)
            if is_loaded:  # weights behind the masks are no longer zero
                model.load_state_dict(plain.state_dict())
            if quantizes_activations(compressor):
                continue
            before = outputs(model, inputs)
            compressor.strip()
            what = f"outputs of {type(model).__name__} after strip()"
            expect_close(outputs(model, inputs), before, what)


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
        expect_equal(
            entry.raw.detach() if entry.mask is None else entry.raw.detach() * entry.mask,
            pristine.get_parameter(entry.label).detach()
            * (1 if entry.mask is None else entry.mask),
            f"{entry.label} after loading a plain checkpoint",
        )
    _expect_like_twin(pristine, model, compressor, "after loading a plain checkpoint")


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
    """A whole compressed model can be pickled; a pruned one computes the same afterwards."""
    model = subject.model()
    subject.compress(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    state = loaded.state_dict()
    for key, value in model.state_dict().items():
        expect_equal(state[key], value, f"{key} after unpickling")
    inputs = model.make_input()
    try:
        result = outputs(loaded, inputs)
    except StageError:
        # The code of a quantizer does not travel inside a pickle; the engine says so.
        expect(subject.cls.kind == "quantizer", "an unpickled pruned model does not run.")
    else:
        expect_equal(result, outputs(model, inputs), "outputs after unpickling")


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
            found = {
                entry.raw.dtype,
                entry.seen.dtype,
                (entry.raw if entry.mask is None else entry.mask).dtype,
            }
            expect(found == {dtype}, f"{entry.label} of a {dtype} model has {found}.")
        train(model, optimizer, 2, compressor)
        expect(outputs(model, model.make_input()).isfinite().all(), f"{dtype}: outputs not finite.")
        _expect_like_twin(pristine, model, compressor, f"in {dtype}")


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
            _expect_like_twin(pristine, model, compressor, f"as {dtype}, training={is_training}")
    optimizer = sgd(model)
    train(model, optimizer, 1, compressor)
    model.eval()
    _expect_like_twin(pristine, model, compressor, "after switching back and training")


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


def _expect_like_twin(
    pristine: nn.Module, model: Specimen, compressor: Compressor, when: str
) -> None:
    """Expect the model to compute what a plain one computes with the weights its layers show."""
    if not quantizes_activations(compressor):
        twin = plain_twin(pristine, model, compressor)
        inputs = model.make_input()
        is_training = model.training
        expected = outputs(twin, inputs, is_training)
        what = f"{when}, outputs against a plain model with the compressed weights"
        expect_close(outputs(model, inputs, is_training), expected, what)


COMMON_CHECKS: tuple[Check, ...] = (
    check_strip_restores_model,
    check_strip_keeps_outputs,
    check_compressing_again_changes_nothing,
    check_plain_checkpoint_loads,
    check_compressed_checkpoint_round_trips,
    check_deepcopy,
    check_pickle,
    check_determinism,
    check_state_round_trip,
    check_bad_config,
    check_dtypes,
    check_switching_dtype_and_mode,
    check_repeated_updates,
)
