"""Checks for every compressor: it leaves no trace, rejects invalid configs, and its weights are used."""

from __future__ import annotations

from typing import Any

from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError
from lilliput.testing.expect import expect, expect_close, expect_equal
from lilliput.testing.lab import Lab, Model
from lilliput.testing.observe import Anatomy, Watch, entries, expect_finite, name_of
from lilliput.testing.subject import Check, Subject, seeded


@seeded
def check_strip_restores_model(subject: Subject) -> None:
    """strip() restores the same parameters, classes, attributes and optimizer, and everything still works."""
    lab = subject.lab
    for model in subject.models():
        optimizer = lab.optimizer(model)
        lab.use(model, optimizer)  # objects created on first use belong to the model
        anatomy = Anatomy(lab, model, optimizer)
        compressor = subject.compress(model, optimizer)
        expect_finite(lab.use(model, optimizer, compressor), f"predictions of {name_of(model)}")
        stripped = compressor.strip()
        where = f"after strip() of {name_of(model)}"
        expect(stripped is model, f"{where}, strip() returned another model.")
        anatomy.expect_same(where, values=False)
        compressor.strip()
        anatomy.expect_same(f"{where} for a second time", values=False)
        predicted = lab.use(model, optimizer)
        expect_close(predicted, lab.outputs(model), f"{where}, predictions against a call")


@seeded
def check_compressing_again_changes_nothing(subject: Subject) -> None:
    """A second compress() changes nothing; compress() after strip() continues where it left off."""
    lab, model = subject.lab, subject.model()
    compressor = subject.compress(model)
    before, keys = lab.outputs(model), list(lab.weights(model))
    expect(compressor.compress() is model, "compress() returned another model.")
    expect(list(lab.weights(model)) == keys, "a second compress() changed the model's keys.")
    expect_equal(lab.outputs(model), before, "outputs after a second compress()")
    compressor.strip()
    compressor.compress()
    expect(list(lab.weights(model)) == keys, "strip() and compress() changed the model's keys.")
    if subject.cls.kind == "pruner":  # quantizing twice may round twice
        expect_close(lab.outputs(model), before, "outputs after strip() and compress()")


@seeded
def check_bad_config(subject: Subject) -> None:
    """An invalid config list raises a ConfigError, and the model is left untouched."""
    bad: dict[str, Any] = {
        "an unknown layer type": subject.rules(op_types=["Conv9d"]),
        "an unknown layer name": subject.rules(op_names=["no.such.layer"]),
        "an empty list": [],
        "a rule that is not a dict": [5],
    }
    if subject.cls.validate_config is Compressor.validate_config:
        bad["an unknown key"] = subject.rules(no_such_key=1)
    if subject.sparsity_key:
        bad["80 as a sparsity"] = subject.rules(**{subject.sparsity_key: 80})
    if subject.has_bits:
        bad["0 bits"] = subject.rules(quant_bits=0)
    lab, model = subject.lab, subject.model()
    optimizer = lab.optimizer(model)
    lab.train(model, optimizer, 1)
    anatomy = Anatomy(lab, model, optimizer)
    for what, rules in bad.items():
        try:
            subject.build_from(model, rules, optimizer).compress(model)
        except ConfigError:
            anatomy.expect_same(f"after {what} was refused")
        else:
            expect(False, f"{what} was accepted, expected a ConfigError.")


@seeded
def check_repeated_updates(subject: Subject) -> None:
    """update_epoch() and step() may be called any number of times, with or without training."""
    lab, model = subject.lab, subject.model()
    optimizer, compressor = subject.set_up(model)
    for epoch in range(3):
        compressor.update_epoch(epoch)
        compressor.update_epoch(epoch)
        lab.train(model, optimizer, 1, compressor)
        compressor.step()
        compressor.step()
    expect_finite(lab.outputs(model), "outputs")
    compressor.strip()
    lab.train(model, optimizer, 1)


@seeded
def check_models_compute_with_compressed_weights(subject: Subject) -> None:
    """Each kind of model has the outputs of a plain model with the weights that its layers expose."""
    others = ("attention", "recurrent", "tied")
    for model in subject.models(*(kind for kind in subject.lab.SPECIMENS if kind not in others)):
        _check_against_twin(subject, model)


@seeded
def check_attention(subject: Subject) -> None:
    """Attention uses compressed weights, including its fast paths."""
    for model in subject.models("attention"):
        _check_against_twin(subject, model)


@seeded
def check_recurrent(subject: Subject) -> None:
    """Recurrent layers use compressed weights."""
    for model in subject.models("recurrent"):
        _check_against_twin(subject, model)


@seeded
def check_tied_weights(subject: Subject) -> None:
    """A weight with two owners is compressed once for both, and is still shared afterwards."""
    for model in subject.models("tied"):
        compressor = _check_against_twin(subject, model)
        by_weight: dict[int, list[Any]] = {}
        for entry in entries(subject.lab, compressor):
            by_weight.setdefault(id(entry.weight), []).append(entry)
        for first, *others in by_weight.values():
            for other in others:
                wrappers = {first.wrapper.name, other.wrapper.name}
                expect(len(wrappers) == 1, f"the tied weight has two wrappers: {wrappers}.")
                expect_close(other.seen, first.seen, "the tied weight as its two owners see it")
        compressor.strip()
        for owners in by_weight.values():
            now = {id(subject.lab.raw(e.owner.module, e.name)) for e in owners}
            expect(len(now) == 1, "the weight is no longer tied after strip().")


def _check_against_twin(subject: Subject, model: Model) -> Compressor:
    """Compare a model with a plain one that has the weights it exposes, in both modes."""
    lab = subject.lab
    optimizer = lab.optimizer(model)
    anatomy = Anatomy(lab, model)
    compressor = subject.compress(model, optimizer)
    anatomy.expect_like_twin(compressor, "after compress()")
    lab.train(model, optimizer, lab.STEPS, compressor)
    anatomy.expect_like_twin(compressor, "after training")
    anatomy.write(anatomy.values)  # weights behind the masks are no longer zero
    anatomy.expect_like_twin(compressor, "after plain weights were written")
    return compressor


@seeded
def check_layers_know_of_training(subject: Subject) -> None:
    """Layers receive whether a call is a training call, even if the model itself does not."""
    lab = subject.lab
    for model in subject.models("mlp", "nested", "subclassed", "untold"):
        optimizer, compressor = subject.set_up(model)
        seen: set[bool] = set()
        compressor.add_activation_collector(
            lambda wrapper, *_, seen=seen: seen.add(bool(wrapper.training))
        )
        for is_training, run in lab.ways_to_run(model, optimizer):
            seen.clear()
            run()
            what = (
                f"layers of {name_of(model)} see training={sorted(seen)}, expected {is_training}."
            )
            expect(seen == {is_training}, what)
        compressor.strip()


@seeded
def check_activation_collectors(subject: Subject) -> None:
    """Collectors receive the inputs and outputs of each layer until they are removed."""
    for model in subject.models("cnn", "mlp"):
        anatomy = Anatomy(subject.lab, model)
        compressor = subject.build(model)
        if not compressor.get_modules_wrapper():
            compressor.compress(model)
        _expect_collected(subject.lab, model, compressor, "before compress()")
        compressor.compress(model)
        _expect_collected(subject.lab, model, compressor, "after compress()")
        compressor.add_activation_collector(lambda wrapper, inputs, output: None)
        compressor.strip()
        anatomy.expect_same("after strip() with a collector", values=False)


def _expect_collected(lab: Lab, model: Model, compressor: Compressor, when: str) -> None:
    seen: dict[str, tuple[Any, Any]] = {}

    def collect(wrapper: Any, inputs: Any, output: Any) -> None:
        seen[wrapper.name] = (inputs, lab.read(output))

    wrappers = {wrapper.name: wrapper for wrapper in compressor.get_modules_wrapper()}
    identifier = compressor.add_activation_collector(collect)
    lab.outputs(model)
    expect(seen.keys() == wrappers.keys(), f"{when}, a collector saw {sorted(seen)}.")
    compressor.remove_activation_collector(identifier)
    collected = dict(seen)
    seen.clear()
    for name, (inputs, output) in collected.items():
        expect(isinstance(inputs, tuple), f"{when}, a collector got {type(inputs)} as inputs.")
        again = lab.run_layer(wrappers[name].module, inputs)
        expect_close(again, output, f"{when}, {name} called once more")
    expect(not seen, f"{when}, a collector is still called after it was removed.")


def check_training_in(
    subject: Subject, model: Model, stored: str, computed: str, optimizer: Any
) -> None:
    """Compress and train a model of another precision, which keeps its dtypes."""
    lab, where = subject.lab, f"{name_of(model)} in {computed}"
    anatomy = Anatomy(lab, model)
    wanted = lab.outputs(model).dtype
    compressor = subject.compress(model, optimizer)
    for entry in entries(lab, compressor):
        tensors = (entry.weight, entry.seen_tensor, entry.mask_tensor)
        found = {lab.describe(tensor)[1] for tensor in tensors if tensor is not None}
        expect(found == {stored}, f"{entry.label} of {where} has {found}, expected {stored}.")
    watch = Watch(lab, compressor)
    lab.train(model, optimizer, 2, compressor)
    if compressor.kind == "pruner" and not subject.cls.regrows:
        watch.expect_zeros(where)
    result = lab.outputs(model)
    expect(result.dtype == wanted, f"{where} returns {result.dtype}, expected {wanted}.")
    expect_finite(result, f"outputs of {where}")
    anatomy.expect_like_twin(compressor, where, computed)
    found_gradients = lab.gradients(model)
    for entry in entries(lab, compressor):
        gradient = found_gradients.get(id(entry.weight))
        expect(gradient is not None, f"{entry.label} of {where} has no gradient.")
        expect_finite(gradient, f"gradients of {entry.label} of {where}")
    compressor.strip()
    anatomy.expect_same(f"after strip() of {where}", values=False)


COMMON_CHECKS: tuple[Check, ...] = (
    check_strip_restores_model,
    check_compressing_again_changes_nothing,
    check_bad_config,
    check_repeated_updates,
    check_models_compute_with_compressed_weights,
    check_attention,
    check_recurrent,
    check_tied_weights,
    check_layers_know_of_training,
    check_activation_collectors,
)
