"""Promises of every compressor: files are plain Keras files, and a run continues from them."""

from __future__ import annotations

import copy
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import keras

from lilliput.backends.keras.variables import to_array
from lilliput.core.state import CompressionState
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.keras.checks_common import train_from_seed
from lilliput.testing.keras.models import TinyCNN, TinyMLP, specimen_of
from lilliput.testing.keras.observe import (
    Anatomy,
    entries,
    expect_same_tensors,
    outputs,
    tensors_of,
)
from lilliput.testing.keras.subject import Check, Subject, seeded, set_seed
from lilliput.testing.keras.train import compiled, train


@seeded
def check_compressed_model_saves_plain_file(subject: Subject) -> None:
    """Saving a compressed model gives the file of a plain one, with pruned weights at zero in it."""
    for model in subject.models():
        compiled(model)
        anatomy = Anatomy(model)
        compressor = subject.compress(model)
        train(model, 1, compressor)
        before, tensors = outputs(model), tensors_of(compressor)
        loaded = _through_file(model)
        where = f"{model.name} from the file of a compressed model"
        expect(len(loaded.weights) == len(anatomy.weights), f"{where}: other weights.")
        for weight, saved in zip(anatomy.weights, loaded.weights, strict=True):
            expect_equal(to_array(saved), to_array(weight), f"{where}, {weight.path}")
        if subject.cls.kind == "pruner":
            expect_close(outputs(loaded), before, f"{where}, outputs")
            expect_close(outputs(copy.deepcopy(model)), before, f"outputs of a copied {model.name}")
        expect_equal(outputs(model), before, f"outputs of {model.name} after it was saved")
        for key, value in tensors_of(compressor).items():
            expect_equal(value, tensors[key], f"{key} after its model was saved")


@seeded
def check_stripped_model_saves_plain_file(subject: Subject) -> None:
    """What strip leaves is saved, and loads, without a word of this package in the file."""
    for model in subject.models(TinyCNN, TinyMLP):
        compressor = subject.compress(model, compiled(model))
        train(model, 1, compressor)
        compressor.strip()
        loaded = _through_file(model, is_foreign=True)
        expect_equal(outputs(loaded), outputs(model), f"outputs of {model.name} from its file")


def _through_file(model: Any, is_foreign: bool = False) -> Any:
    """Return a model that was saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        if is_foreign:
            with zipfile.ZipFile(path) as file:
                text = json.dumps(json.loads(file.read("config.json")))
            expect("lilliput" not in text, f"the file of {model.name} names Lilliput.")
        return keras.models.load_model(path)


@seeded
def check_plain_weights_load(subject: Subject) -> None:
    """A file of the plain model's weights loads into a compressed one, which stays compressed."""
    for model in subject.models():
        pristine = specimen_of(model)()
        anatomy = Anatomy(model)
        compressor = subject.compress(model)
        kept = tensors_of(compressor)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.weights.h5"
            pristine.save_weights(path)
            model.load_weights(path)
        for key, value in tensors_of(compressor).items():
            expect_equal(value, kept[key], f"{key} after loading plain weights")
        masks = {id(e.variable): e.mask for e in entries(compressor, True) if e.mask is not None}
        for weight, saved in zip(anatomy.weights, pristine.weights, strict=True):
            mask = masks.get(id(weight), 1)  # what a mask removes may be zero already
            loaded, wanted = to_array(weight) * mask, to_array(saved) * mask
            expect_equal(loaded, wanted, f"{weight.path} from a file")
        anatomy.expect_like_twin(model, compressor, "after loading plain weights")


@seeded
def check_training_continues_from_files(subject: Subject) -> None:
    """A model and a state from files go on as if nothing had happened: same masks, same next steps."""
    model, compressor = train_from_seed(subject)
    compressor.update_epoch(0)
    with tempfile.TemporaryDirectory() as folder:
        compressor.state().save(folder)
        model.save(Path(folder) / "model.keras")
        state = CompressionState.load(folder)
        other = keras.models.load_model(Path(folder) / "model.keras")
    second = subject.compress(other, other.optimizer if compressor.optimizer is not None else None)
    second.load_state(state)
    expect_same_tensors(second, compressor, "after load_state()")
    expect_equal(outputs(other), outputs(model), "outputs after load_state()")
    for each, its in ((model, compressor), (other, second)):
        set_seed(5)
        train(each, 1, its)
        its.update_epoch(1)
        train(each, 1, its)
    expect_same_tensors(second, compressor, "after load_state() and further training")
    for one, two in zip(entries(compressor), entries(second), strict=True):
        expect_equal(two.raw, one.raw, f"{one.label} after load_state() and further training")
    what = "outputs after load_state() and further training"
    expect_equal(outputs(other), outputs(model), what)


SAVING_CHECKS: tuple[Check, ...] = (
    check_compressed_model_saves_plain_file,
    check_stripped_model_saves_plain_file,
    check_plain_weights_load,
    check_training_continues_from_files,
)
