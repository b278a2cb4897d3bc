"""v3's pruners and quantizers: ``compress(max_steps, max_epochs)``, one or several on a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lilliput.compat.nni.classes.adapted_pruners import AdaptedPruner, SecondStackPruner
from lilliput.compat.nni.classes.fusion import Fused
from lilliput.compat.nni.classes.stacks import AdaptedQuantizer
from lilliput.compat.nni.classes.target_calibration import calibration_by_target, load_by_target
from lilliput.compat.nni.config.target_quant_rules import (
    fused_names,
    read_settings,
    target_quant_rules,
)
from lilliput.compat.nni.config.target_rules import split_rules
from lilliput.errors import ConfigError, Problem, StageError
from lilliput.pruning.collecting import CollectingPruner
from lilliput.torch import PTQQuantizer, SlimPruner


class ThirdStackPruner(Fused, SecondStackPruner):
    """A pruner of v3: ``compress(max_steps, max_epochs)``."""

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        if isinstance(self, SlimPruner):
            raise StageError(
                "SlimPruner: that of v3 trained its own factors besides the weights. Here it is that of "
                "the paper, on the scales of batch norms: lilliput.torch.SlimPruner(model, config_list, "
                "optimizer, training_epochs=…, scale=1e-4), or v2's from nni.compression.pytorch.pruning."
            )
        rules, targets = split_rules(given.get("config_list"), type(self).__name__)
        given["config_list"] = rules
        if targets:
            self.follow_targets(targets)
        return super()._translated(given)

    @classmethod
    def faults_of(cls, rules: list[Any]) -> list[Problem] | None:
        """Return the problems of rules that are only in the keys of v3, or None for other rules."""
        try:
            return [] if split_rules(rules, cls.__name__)[1] else None
        except ConfigError as error:
            return list(error.problems)

    def _check_masks(self, wrapper: Any, answer: Any) -> dict[str, Any]:
        if self.targets_by_rule:
            return AdaptedPruner._check_masks(self, wrapper, answer)
        return super()._check_masks(wrapper, answer)

    def update_masks(self, masks: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply masks from :meth:`get_masks`."""
        self.load_masks(masks)

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Compress the model and return it with its masks."""
        if self.others:
            self.train_together(max_steps, max_epochs)
            return self.bound_model, self.get_masks()
        if (max_steps, max_epochs) != (None, None) and not isinstance(self, CollectingPruner):
            raise StageError(
                f"{type(self).__name__}: it prunes immediately, so compress() does not train for max_steps "
                "or max_epochs; call compress(), and train the model afterwards."
            )
        AdaptedPruner.compress(self)
        return self.bound_model, self.get_masks()


class ThirdStackQuantizer(Fused, AdaptedQuantizer):
    """A quantizer of v3: trains inside ``compress()`` and returns the model and its calibration."""

    follows_settings = False
    fuse_names: tuple[tuple[str, ...], ...] = ()

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        evaluator = given.get("evaluator")
        fused = fused_names(given.get("config_list"))
        if fused and getattr(evaluator, "dummy_input", None) is None:
            raise ConfigError(
                f"{type(self).__name__}: 'fuse_names' needs an example input to trace the model: "
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
        """Return the problems of rules that are only in the keys of v3, or None for other rules."""
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
        """As in :meth:`Adapted.attach`; raise if layers to fuse are not consecutive in the model."""
        model = super().attach(*args, **kwargs)
        norms = {
            wrapper.name: getattr(wrapper, "norm", "") for wrapper in self.get_modules_wrapper()
        }
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

    def update_calibration_config(self, calibration_config: Mapping[str, Any]) -> None:
        """Quantize with the ranges of another quantizer's :meth:`get_calibration_config`."""
        self.attach_all()
        load_by_target(self, calibration_config)


class ThirdStackCalibration(ThirdStackQuantizer, PTQQuantizer):
    """v3's ``PtqQuantizer``: runs the evaluator's steps without changing weights."""

    default_observer = "minmax"

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Calibrate with the evaluator's steps; return the model and its ranges."""
        if self.evaluator is None:
            raise StageError(
                f"{type(self).__name__}: calibration runs the evaluator's steps; pass an evaluator, or "
                "use lilliput.torch.PTQQuantizer with compress() and calibrate(batches)."
            )
        if any(other.needs_training() for other in self.others):
            self.train_together(max_steps, max_epochs)
        else:
            self.attach_all()
            self.finish_training(max_steps, max_epochs)
        return self.bound_model, self.get_calibration_config()

    def needs_training(self) -> bool:
        """Whether ranges come from training; never."""
        return False

    def finish_training(self, max_steps: int | None, max_epochs: int | None) -> None:
        """Run the evaluator's steps in evaluation mode, and fix the ranges."""

        def run(model: Any, _: Any) -> None:
            with self.evaluator.serving(is_looking=True), torch.enable_grad():
                if max_steps or max_epochs:
                    self.evaluator.train(model, max_steps, max_epochs)
                self.evaluator.evaluate(model)

        self.calibrate([None], run, progress=False)

    def _place_by(self, batch: Any, forward: Any) -> None:
        """Quantize where the rules say, as v3 did: the flow of a training run is not that of the model."""
