"""Promises about training: pruned weights stay zero and steps are counted, however a model is trained."""

from __future__ import annotations

from typing import Any

from lilliput.testing.expect import expect, expect_zero
from lilliput.testing.keras.loops import own_loops
from lilliput.testing.keras.models import (
    TinyAttention,
    TinyCNN,
    TinyLSTM,
    TinyMLP,
    TinyNested,
    TinySubclassed,
    TinyUntold,
    make_batch,
)
from lilliput.testing.keras.observe import Anatomy, entries, outputs, predictions
from lilliput.testing.keras.subject import Check, Subject, seeded
from lilliput.testing.keras.train import adamw, compiled, fit, gradients, sgd, train


class _Watch:
    """What was zero when a pruner began, and whether it still is."""

    def __init__(self, compressor: Any) -> None:
        self.compressor = compressor
        self.pruned = {e.label: e.pruned for e in entries(compressor)}
        self.before = {e.label: e.raw for e in entries(compressor)}

    def expect_zeros(self, when: str) -> None:
        """Expect zeros in the raw weight as well: nothing is only hidden behind a mask."""
        for entry in entries(self.compressor):
            where = self.pruned[entry.label]
            expect_zero(entry.seen[where], f"{when}, pruned weights of {entry.label}")
            expect_zero(entry.raw[where], f"{when}, raw pruned weights of {entry.label}")

    def expect_training(self, when: str) -> None:
        """Expect the weights that were kept to have moved."""
        for entry in entries(self.compressor):
            kept = ~self.pruned[entry.label]
            is_moving = (entry.raw != self.before[entry.label])[kept].any()
            expect(is_moving or not kept.any(), f"{when}, {entry.label}: no kept weight trains.")


@seeded
def check_pruned_weights_stay_zero(subject: Subject) -> None:
    """Neither momentum from before, nor weight decay, nor Adam moves a pruned weight."""
    if subject.cls.regrows:
        return
    for model in subject.models(TinyCNN, TinyLSTM, TinyAttention):
        _check_zeros(subject, model, _decaying())
    for model in subject.models(TinyMLP):
        _check_zeros(subject, model, adamw())


def _check_zeros(subject: Subject, model: Any, optimizer: Any) -> None:
    optimizer = compiled(model, optimizer)
    train(model, 1)  # so that the optimizer remembers all weights
    compressor = subject.compress(model, optimizer)
    watch = _Watch(compressor)
    for step in range(2):
        train(model, 1, compressor)
        watch.expect_zeros(f"{model.name}, {optimizer.name} step {step + 1}")
    watch.expect_training(f"{model.name}, {optimizer.name}")
    found = gradients(model)
    for entry in entries(compressor):
        gradient = found.get(id(entry.variable))
        if gradient is not None:
            where = watch.pruned[entry.label]
            expect_zero(gradient[where], f"gradient of pruned {entry.label}")


def _decaying() -> Any:
    """Return the optimizer that moves pruned weights the most: momentum and weight decay."""
    return sgd(weight_decay=0.01)


@seeded
def check_fit_keeps_zeros(subject: Subject) -> None:
    """Compiled ``fit`` keeps pruned weights at zero: by the callback, or by the optimizer alone."""
    if subject.cls.regrows:
        return
    for make_optimizer, is_given in ((_decaying, True), (adamw, False)):
        for model in subject.models(TinyMLP):
            optimizer = compiled(model, make_optimizer(), run_eagerly=False)
            fit(model)  # so that the optimizer remembers all weights
            compressor = subject.compress(model, optimizer if is_given else None)
            watch = _Watch(compressor)
            fit(model, 2, None if is_given else [compressor.callback()])
            how = "optimizer" if is_given else "callback"
            watch.expect_zeros(f"after fit with {optimizer.name}, followed by the {how}")
            watch.expect_training(f"after fit with {optimizer.name}, followed by the {how}")


@seeded
def check_train_on_batch_keeps_zeros(subject: Subject) -> None:
    """Compiled ``train_on_batch`` keeps pruned weights at zero."""
    if subject.cls.regrows:
        return
    for model in subject.models(TinyMLP):
        optimizer = compiled(model, run_eagerly=False)
        compressor = subject.compress(model, optimizer)
        watch = _Watch(compressor)
        train(model, 3, compressor)
        watch.expect_zeros("after train_on_batch")
        watch.expect_training("after train_on_batch")


@seeded
def check_training_is_followed(subject: Subject) -> None:
    """Every step is counted once and every epoch announced, whoever follows the training."""
    for has_optimizer in (True, False):
        for has_callback in (True, False):
            for model in subject.models(TinyMLP):
                optimizer = compiled(model)
                compressor = subject.compress(model, optimizer if has_optimizer else None)
                # A ``make`` may leave the optimizer out: then only the callback follows.
                is_bound = compressor.optimizer is not None if subject.make else has_optimizer
                counts = _count_calls(compressor)
                callbacks = [compressor.callback()] if has_callback else []
                fit(model, 2, callbacks)
                when = f"optimizer {is_bound}, callback {has_callback}: after 2 epochs of 2 steps"
                steps = 4 if is_bound or has_callback else 0
                expect(counts["steps"] == steps, f"{when}, {counts['steps']} were counted.")
                epochs = [0, 1] if has_callback else []
                expect(counts["epochs"] == epochs, f"{when}, epochs {counts['epochs']} were seen.")
                train(model, 1)
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
    """Loops that users write themselves train a compressed model: eager, in a graph, stateless."""
    for how, loop in own_loops().items():
        for model in subject.models(TinyMLP):
            anatomy = Anatomy(model)
            optimizer = sgd()
            optimizer.build(model.trainable_variables)
            compressor = subject.compress(model, optimizer)
            watch = _Watch(compressor)
            loop(model, compressor, 3)
            if compressor.kind == "pruner" and not subject.cls.regrows:
                watch.expect_zeros(f"in {how}")
            watch.expect_training(f"in {how}")
            compressor.strip()
            anatomy.expect_same(model, f"after {how} and strip()", values=False)


@seeded
def check_layers_know_of_training(subject: Subject) -> None:
    """Layers are told whether a call is one of training, even where the model itself is not."""
    for model in subject.models(TinyMLP, TinyNested, TinySubclassed, TinyUntold):
        optimizer = compiled(model)
        compressor = subject.compress(model, optimizer)
        seen: set[bool] = set()
        compressor.add_activation_collector(
            lambda wrapper, *_, seen=seen: seen.add(wrapper.training)
        )
        for is_training, run in (
            (False, lambda model=model: outputs(model)),
            (True, lambda model=model: train(model, 1)),
            (False, lambda model=model: model.test_on_batch(*make_batch(model))),
            (False, lambda model=model: predictions(model)),
        ):
            seen.clear()
            run()
            what = f"layers of {model.name} see training={sorted(seen)}, expected {is_training}."
            expect(seen == {is_training}, what)
        compressor.strip()


TRAINING_CHECKS: tuple[Check, ...] = (
    check_training_is_followed,
    check_own_loops,
    check_layers_know_of_training,
)
ZERO_CHECKS: tuple[Check, ...] = (
    check_pruned_weights_stay_zero,
    check_fit_keeps_zeros,
    check_train_on_batch_keeps_zeros,
)
