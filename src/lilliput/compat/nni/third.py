"""v3's pruners and quantizers: ``compress(max_steps, max_epochs)``, alone or several on one model."""

from __future__ import annotations

from typing import Any

import torch

from lilliput.compat.nni.evaluators import Evaluator
from lilliput.compat.nni.stacks import Adapted, AdaptedPruner, AdaptedQuantizer, SecondStackPruner
from lilliput.compat.nni.target_calibration import calibration_by_target
from lilliput.compat.nni.target_masks import target_masker
from lilliput.compat.nni.target_quant_rules import (
    fused_names,
    read_settings,
    target_quant_rules,
)
from lilliput.compat.nni.target_rules import Target, split_rules
from lilliput.compat.nni.training import training_mode
from lilliput.errors import ConfigError, Problem, StageError
from lilliput.pruning.collecting import CollectingPruner
from lilliput.torch import PTQQuantizer, SlimPruner


class Fused(Adapted):
    """A compressor that others on the same model may have been made before: v3's fusion.

    Masks come first and integers second, in whichever order they were made. ``compress()`` of the one
    that was made last trains once, and all of them follow its steps.
    """

    others: tuple[Any, ...] = ()  # made before, the latest first

    @classmethod
    def from_compressor(
        cls,
        compressor: Any,
        new_config_list: Any,
        *args: Any,
        evaluator: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return a further compressor of the model that one has, with the same evaluator.

        Parameters
        ----------
        compressor : Compressor
            A pruner or quantizer of v3.
        new_config_list : list of dict
            What the new one compresses.
        *args, **kwargs
            What the constructor takes behind the evaluator.
        evaluator : Evaluator, optional
            Needed where ``compressor`` has none.
        """
        if not isinstance(compressor, Fused):
            raise ConfigError(
                f"{cls.__name__}.from_compressor: received {type(compressor).__name__!r}, expected a "
                "pruner or quantizer of nni.compression."
            )
        rest = [x for x in args if not isinstance(x, Evaluator)]
        given = [x for x in (*args, evaluator) if isinstance(x, Evaluator)]
        evaluator = compressor.evaluator or next(iter(given), None)
        named = dict(zip(_further_parameters(cls), rest, strict=False))
        made: Any = cls(
            compressor.bound_model, new_config_list, evaluator=evaluator, **named, **kwargs
        )
        made.others = (compressor, *compressor.others)
        return made

    @property
    def fused_compressors(self) -> list[Any]:
        """All compressors of the model: this one, and those that were made before it."""
        return [self, *self.others]

    def train_together(self, max_steps: int | None, max_epochs: int | None) -> None:
        """Attach all compressors, train once while they follow, and finish what each has begun."""
        if self.evaluator is None:
            raise StageError(
                f"{type(self).__name__}: compress() trains, which takes an evaluator; give one to the "
                "constructor, or evaluator= to from_compressor()."
            )
        if max_steps is None and max_epochs is None:
            raise ConfigError(
                f"{type(self).__name__}: compress() received neither max_steps nor max_epochs; expected "
                "one of them, how long to train."
            )
        self.attach_all()
        with training_mode(self.bound_model), self.evaluator.serving(*self.fused_compressors):
            self.evaluator.train(self.bound_model, max_steps, max_epochs)
        for compressor in self.fused_compressors:
            if isinstance(compressor, CollectingPruner):
                Adapted.finish_collecting(compressor)  # type: ignore[arg-type]
            elif isinstance(compressor, ThirdStackCalibration) and compressor is not self:
                compressor.look(max_steps, max_epochs)

    def attach_all(self) -> None:
        """Put every compressor in force, in the order in which they were made."""
        for compressor in reversed(self.fused_compressors):
            if compressor.optimizer is None and self.evaluator is not None:
                compressor.bind_optimizer(self.evaluator.optimizer)
            if not compressor.is_wrapped:
                compressor.attach()

    def needs_training(self) -> bool:
        """Whether this one has something to do in training."""
        return isinstance(self, CollectingPruner) and not self.masker.is_ready()

    def get_masks(self) -> dict[str, dict[str, Any]]:
        """Return the masks of every pruner on the model, as ``{layer: {'weight': mask}}``."""
        found: dict[str, dict[str, Any]] = {}
        for compressor in reversed(self.fused_compressors):
            for name, masks in Adapted.get_masks(compressor).items():
                found[name] = _together(found.get(name, {}), masks)
        return found

    def unwrap_model(self) -> Any:
        """Leave the model as a plain one, pruned weights are zeros."""
        for compressor in self.fused_compressors:
            compressor._unwrap_model()
        return self.bound_model

    def wrap_model(self) -> Any:
        """Put all masks and quantizers in force again."""
        for compressor in reversed(self.fused_compressors):
            compressor._wrap_model()
        return self.bound_model


def _further_parameters(cls: type[Adapted]) -> list[str]:
    """Return what a constructor takes behind the evaluator, by position."""
    first = next(iter(cls.forms), None)
    known = ("model", "config_list", "evaluator", "existed_wrappers")
    return [] if first is None else [name for name in first.parameters if name not in known]


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the masks of two pruners of one layer: what either removes is gone."""
    return {
        key: one[key] * other[key] if key in one and key in other else one.get(key, other.get(key))
        for key in {**one, **other}
    }


class ThirdStackPruner(Fused, SecondStackPruner):
    """A pruner of v3: ``compress(max_steps, max_epochs)``."""

    slim_ranks_all = False
    targets_by_rule: tuple[Target | None, ...] = ()  # what rules say in the keys of v3 alone
    slim_steps: int = 0

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        rules, targets = split_rules(given.get("config_list"), type(self).__name__)
        given["config_list"], self.targets_by_rule = rules, tuple(targets)
        pruner: Any = self
        if targets:
            pruner.masker_type = target_masker(pruner.masker_type)
        if isinstance(self, SlimPruner):
            self.slim_steps = given.pop("training_steps") or 0
            given["training_epochs"] = 1 if self.slim_steps else 0
        return super()._translated(given)

    @classmethod
    def faults_of(cls, rules: list[Any]) -> list[Problem] | None:
        """Return what is wrong with rules in the keys of v3 alone, None if they are not in those."""
        try:
            return [] if split_rules(rules, cls.__name__)[1] else None
        except ConfigError as error:
            return list(error.problems)

    def target_of(self, wrapper: Any) -> Target:
        """Return what v3's rule for a layer asks."""
        taken = {d.layer.name: d.rule for d in self.selection.decisions if d.is_chosen}
        found = self.targets_by_rule[taken[wrapper.name] or 0]
        return Target(ratio=0.0) if found is None else found

    def _check_masks(self, wrapper: Any, answer: Any) -> dict[str, Any]:
        if self.targets_by_rule:
            return AdaptedPruner._check_masks(self, wrapper, answer)
        return super()._check_masks(wrapper, answer)

    def _train_slim(self, epochs: int) -> None:
        pruner: Any = self
        if self.slim_steps:
            self.run_evaluator(self.slim_steps, None)
        pruner.update_epoch(epochs)

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Compress the model and return it with its masks."""
        if self.others:
            self.train_together(max_steps, max_epochs)
            return self.bound_model, self.get_masks()
        if (max_steps, max_epochs) != (None, None) and not isinstance(self, CollectingPruner):
            raise StageError(
                f"{type(self).__name__}: it prunes at once, so compress() does not train for max_steps or "
                "max_epochs; call compress(), and train the model afterwards."
            )
        AdaptedPruner.compress(self)
        return self.bound_model, self.get_masks()


class ThirdStackQuantizer(Fused, AdaptedQuantizer):
    """A quantizer of v3: trains inside ``compress()`` and returns the model and its calibration."""

    fuse_names: tuple[tuple[str, ...], ...] = ()

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        evaluator = given.get("evaluator")
        fused = fused_names(given.get("config_list"))
        if fused and getattr(evaluator, "dummy_input", None) is None:
            raise ConfigError(
                f"{type(self).__name__}: 'fuse_names' is found out from the model, which takes an input: "
                "TorchEvaluator(..., dummy_input=x)."
            )
        self.fuse_names = fused
        given["config_list"] = target_quant_rules(
            given["model"], given.get("config_list"), type(self).rule, type(self).__name__
        )
        translated = super()._translated(given)
        if fused:
            translated["example_inputs"] = evaluator.dummy_input  # type: ignore[union-attr]
        return translated

    @classmethod
    def faults_of(cls, rules: list[Any]) -> list[Problem] | None:
        """Return what is wrong with rules in the keys of v3 alone, None if they are not in those."""
        try:
            found = [read_settings(i, rule, cls.__name__) for i, rule in enumerate(rules)]
        except ConfigError as error:
            return list(error.problems)
        return [] if any(settings is not None for settings in found) else None

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Train with the evaluator, and return the model with its ranges."""
        if self.others or (self.evaluator is not None and (max_steps or max_epochs)):
            self.train_together(max_steps, max_epochs)
        else:
            self.attach()
        return self.bound_model, self.get_calibration_config()

    def attach(self, *args: Any, **kwargs: Any) -> Any:
        """As in :meth:`Adapted.attach`; refuse to fuse what does not follow each other in the model."""
        model = super().attach(*args, **kwargs)
        norms = {wrapper.name: wrapper.norm for wrapper in self.get_modules_wrapper()}
        for layer, *rest in self.fuse_names:
            kinds = [type(model.get_submodule(name)).__name__ for name in rest]
            asked = [x for x, kind in zip(rest, kinds, strict=True) if "BatchNorm" in kind]
            if asked and norms.get(layer) != asked[0]:
                self.strip()
                raise ConfigError(
                    f"{type(self).__name__}: 'fuse_names' joins {layer!r} with {asked[0]!r}; what follows "
                    f"it in the model is {norms.get(layer) or 'no batch norm'!r}."
                )
        return model

    def needs_training(self) -> bool:
        """Whether ranges or scales come from training; always."""
        return True

    def get_calibration_config(self) -> dict[str, dict[str, Any]]:
        """Return scale, zero point, dtype and range of each quantized tensor of each layer."""
        return calibration_by_target(self)


class ThirdStackCalibration(ThirdStackQuantizer, PTQQuantizer):
    """v3's ``PtqQuantizer``: the evaluator's steps are run, and no weight is changed by them."""

    default_observer = "minmax"

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Calibrate by what the evaluator's steps show; return the model and its ranges."""
        if self.evaluator is None:
            raise StageError(
                f"{type(self).__name__}: calibration runs the evaluator's steps; give it an evaluator, or "
                "use lilliput.torch.PTQQuantizer with compress() and calibrate(batches)."
            )
        if any(other.needs_training() for other in self.others):
            self.train_together(max_steps, max_epochs)
        else:
            self.attach_all()
        self.look(max_steps, max_epochs)
        return self.bound_model, self.get_calibration_config()

    def needs_training(self) -> bool:
        """Whether ranges come from training; never."""
        return False

    def look(self, max_steps: int | None, max_epochs: int | None) -> None:
        """Run the evaluator's steps in evaluation mode, and fix the ranges by what they show."""

        def run(model: Any, _: Any) -> None:
            with self.evaluator.serving(is_looking=True), torch.enable_grad():
                if max_steps or max_epochs:
                    self.evaluator.train(model, max_steps, max_epochs)
                self.evaluator.evaluate(model)

        self.calibrate([None], run, progress=False)

    def place_by(self, batch: Any, forward: Any) -> None:
        """Quantize where the rules say, as v3 did: the flow of a training run is no model's."""
