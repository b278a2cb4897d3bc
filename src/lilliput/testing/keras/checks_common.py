"""Promises of every compressor: leave no trace, refuse nonsense, repeat exactly."""

from __future__ import annotations

from typing import Any

from lilliput.backends.keras.variables import to_array
from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.keras.models import TinyCNN, TinyMLP, make_batch
from lilliput.testing.keras.observe import (
    Anatomy,
    expect_finite,
    expect_same_tensors,
    outputs,
    predictions,
)
from lilliput.testing.keras.subject import Check, Subject, seeded, set_seed
from lilliput.testing.keras.train import compiled, train


@seeded
def check_strip_restores_model(subject: Subject) -> None:
    """Strip gives back the same variables, classes, attributes and optimizer; all still works."""
    for model in subject.models():
        optimizer = compiled(model)
        _use(model)
        anatomy = Anatomy(model, optimizer)
        compressor = subject.compress(model, optimizer)
        _use(model)
        stripped = compressor.strip()
        where = f"after strip() of {model.name}"
        expect(stripped is model, f"{where}, strip() returned another model.")
        anatomy.expect_same(model, where, values=False)
        compressor.strip()
        anatomy.expect_same(model, f"{where} for a second time", values=False)
        _use(model)
        expect_close(predictions(model), outputs(model), f"{where}, predictions against a call")


def _use(model: Any) -> None:
    train(model, 1)
    model.test_on_batch(*make_batch(model))
    expect_finite(predictions(model), f"predictions of {model.name}")


@seeded
def check_compressing_again_changes_nothing(subject: Subject) -> None:
    """A second compress() is harmless; compress after strip continues where it was."""
    model = subject.model()
    compressor = subject.compress(model)
    before, count = outputs(model), len(model.weights)
    expect(compressor.compress() is model, "compress() returned another model.")
    expect(len(model.weights) == count, "a second compress() changed the number of weights.")
    expect_equal(outputs(model), before, "outputs after a second compress()")
    compressor.strip()
    compressor.compress()
    expect(len(model.weights) == count, "strip() and compress() changed the number of weights.")
    if subject.cls.kind == "pruner":  # quantizing twice may well round twice
        expect_close(outputs(model), before, "outputs after strip() and compress()")


@seeded
def check_models_compute_with_compressed_weights(subject: Subject) -> None:
    """Each kind of model computes what a plain one computes with the weights that its layers show."""
    for model in subject.models():
        compiled(model)
        anatomy = Anatomy(model)
        compressor = subject.compress(model)
        anatomy.expect_like_twin(model, compressor, "after compress()")
        train(model, 1, compressor)
        anatomy.expect_like_twin(model, compressor, "after training")


@seeded
def check_bad_config(subject: Subject) -> None:
    """A config list that makes no sense is a ConfigError, and the model is left untouched."""
    bad: dict[str, Any] = {
        "an unknown layer type": subject.rules(op_types=["Conv9D"]),
        "an unknown layer name": subject.rules(op_names=["no/such/layer"]),
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
    optimizer = compiled(model)
    train(model, 1)
    anatomy = Anatomy(model, optimizer)
    for what, rules in bad.items():
        try:
            subject.build_from(model, rules, optimizer).compress(model)
        except ConfigError:
            anatomy.expect_same(model, f"after {what} was refused")
        else:
            expect(False, f"{what} was accepted, expected a ConfigError.")


@seeded
def check_repeated_updates(subject: Subject) -> None:
    """update_epoch() and step() may be called any number of times, with or without training."""
    model = subject.model()
    compressor = subject.compress(model, compiled(model))
    for epoch in range(2):
        compressor.update_epoch(epoch)
        compressor.update_epoch(epoch)
        train(model, 1, compressor)
        compressor.step()
        compressor.step()
    expect_finite(outputs(model), "outputs")
    compressor.strip()
    train(model, 1)


@seeded
def check_determinism(subject: Subject) -> None:
    """The same seed gives the same masks, weights and outputs, bit by bit."""
    first, second = train_from_seed(subject), train_from_seed(subject)
    expect_same_tensors(second[1], first[1], "from the same seed")
    what = "outputs of two runs from the same seed"
    expect_equal(outputs(second[0]), outputs(first[0]), what)


def train_from_seed(subject: Subject) -> tuple[Any, Compressor]:
    """Return a model that was trained a little, and its compressor; the same each time."""
    set_seed(3)
    model = subject.model()
    compressor = subject.compress(model, compiled(model))
    train(model, 1, compressor)
    return model, compressor


@seeded
def check_activation_collectors(subject: Subject) -> None:
    """Collectors see what each layer is called with and returns, until they are removed."""
    for model in subject.models(TinyCNN, TinyMLP):
        anatomy = Anatomy(model)
        compressor = subject.build(model)
        if not compressor.get_modules_wrapper():
            compressor.compress(model)
        _expect_collected(model, compressor, "before compress()")
        compressor.compress(model)
        _expect_collected(model, compressor, "after compress()")
        compressor.add_activation_collector(lambda wrapper, inputs, output: None)
        compressor.strip()
        anatomy.expect_same(model, "after strip() with a collector", values=False)


def _expect_collected(model: Any, compressor: Compressor, when: str) -> None:
    seen: dict[str, tuple[Any, Any]] = {}

    def collect(wrapper: Any, inputs: Any, output: Any) -> None:
        seen[wrapper.name] = (inputs, output)

    wrappers = {wrapper.name: wrapper for wrapper in compressor.get_modules_wrapper()}
    identifier = compressor.add_activation_collector(collect)
    outputs(model)
    expect(seen.keys() == wrappers.keys(), f"{when}, a collector saw {sorted(seen)}.")
    compressor.remove_activation_collector(identifier)
    collected = dict(seen)
    seen.clear()
    for name, (inputs, output) in collected.items():
        expect(isinstance(inputs, tuple), f"{when}, a collector got {type(inputs)} as inputs.")
        again = wrappers[name].module(*inputs)
        expect_close(to_array(again), to_array(output), f"{when}, {name} called once more")
    expect(not seen, f"{when}, a collector is still called after it was removed.")


COMMON_CHECKS: tuple[Check, ...] = (
    check_strip_restores_model,
    check_compressing_again_changes_nothing,
    check_models_compute_with_compressed_weights,
    check_bad_config,
    check_repeated_updates,
    check_determinism,
    check_activation_collectors,
)
