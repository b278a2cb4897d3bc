"""The three generations of NNI's classes, as thin forms of Lilliput's own.

A class behind one of NNI's paths is a subclass of Lilliput's class with that name. It reads the
constructor of its generation, runs a trainer or an evaluator inside ``compress()`` if there is one,
and returns results in the form of its generation; everything else is inherited.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from lilliput.compat.nni.classes.arguments import Form, Unknown, read_arguments
from lilliput.compat.nni.classes.gradients import wants_grid, with_grid
from lilliput.compat.nni.classes.older_names import OlderNames
from lilliput.compat.nni.classes.training import call_trainer, training_mode
from lilliput.compat.nni.classes.wrappers import SeenQuantizerWrapper
from lilliput.compat.nni.config.failures import as_schema_errors
from lilliput.compat.nni.config.rules import has_sparsity, in_total, on_schedule
from lilliput.compat.nni.config.settings import with_settings
from lilliput.compat.nni.tools.exporting import QuantizerFiles
from lilliput.errors import ConfigError
from lilliput.pruning.balance import BalancedMasker, balanced
from lilliput.pruning.collecting import CollectingPruner
from lilliput.pruning.scheduled import ScheduledPruner
from lilliput.torch import (
    LevelPruner,
    Pruner,
    QuantGrad,
    Quantizer,
    QuantType,
    SlimPruner,
)

log = logging.getLogger("lilliput")

_RENAMED = {
    "statistics_batch_num": "training_batches",
    "sparsifying_training_batches": "training_batches",
    "training_steps": "training_batches",
    "sparsifying_training_epochs": "training_epochs",
    "traced_optimizer": "optimizer",
    "regular_scale": "scale",
}
_KEPT = {
    *("model", "config_list", "optimizer", "training_batches", "activation", "training_epochs"),
    *("scale", "pruning_algorithm", "pruning_params", "quant_start_step", "example_inputs"),
}
_IGNORED = ("log_dir", "keep_intermediate_result", "existed_wrappers")


class Adapted(OlderNames):
    """The common part of all classes behind NNI's paths."""

    forms: ClassVar[tuple[Form, ...]] = ()
    _strict_names = False  # NNI only warned, and used what did match
    trainer: Any = None
    criterion: Any = None
    evaluator: Any = None
    finetuner: Any = None
    iterations: int = 0
    epochs: int = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        epochs = None
        if self.forms and not self._is_of_today(args, kwargs):
            given = read_arguments(type(self).__name__, self.forms, args, kwargs)
            args, kwargs = (), self._translated(given)
            if self.evaluator is not None and self.evaluator.optimizer is None:
                epochs = kwargs.pop("training_epochs", None)  # the optimizer is created later
        super().__init__(*args, **kwargs)
        if epochs and isinstance(self, SlimPruner):
            self.masker.training_epochs = epochs

    def _is_of_today(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call uses arguments that only the current constructor has."""
        known = {name for each in self.forms for name in each.parameters}
        return bool(kwargs.keys() - known) and not args[2:]

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the current constructor, and store those of a training run."""
        given = {_RENAMED.get(key, key): value for key, value in given.items()}
        for name in ("trainer", "criterion", "evaluator", "finetuner"):
            setattr(self, name, given.pop(name, None))
        if self.evaluator is not None:
            given["optimizer"] = self.evaluator.optimizer
        rules, mode = given.get("config_list"), given.pop("mode", None) or "normal"
        inputs = given.pop("dummy_input", None)
        if given.pop("dependency_aware", False) or mode == "dependency_aware":
            if inputs is None:
                raise ConfigError(f"{type(self).__name__}: dependency_aware needs dummy_input.")
            self.filters_only, given["example_inputs"] = True, inputs
        elif isinstance(self, Quantizer) and inputs is not None:
            given["example_inputs"] = inputs
        is_global = given.pop("global_sort", False) or mode == "global"
        if is_global or isinstance(self, SlimPruner):
            rules = self._ranked_globally(rules)
        if isinstance(self, ScheduledPruner):
            rules = self._scheduled(rules, given)
        given["config_list"] = rules
        if mode == "balance":
            self._balance(given)
        elif mode not in ("normal", "global", "dependency_aware"):
            raise ConfigError(f"{type(self).__name__}: mode {mode!r} is not available.")
        given = {key: value for key, value in given.items() if value is not None}
        unused = [key for key, value in given.items() if key not in (*_KEPT, *_IGNORED) and value]
        if unused:
            raise ConfigError(f"{type(self).__name__}: {unused[0]} is not available here.")
        return {key: value for key, value in given.items() if key in _KEPT}

    def _ranked_globally(self, rules: Any) -> Any:
        """Make each rule's sparsity apply to all its layers together."""
        return in_total(rules)

    def _balance(self, given: dict[str, Any]) -> None:
        pruner: Any = self
        if not isinstance(self, LevelPruner):
            raise ConfigError(
                f"{type(self).__name__}: mode 'balance' is only available for LevelPruner."
            )
        block = given.pop("balance_gran", None)
        # If a program is only read, the blocks may be unknown.
        pruner.masker_type = BalancedMasker if isinstance(block, Unknown) else balanced(block)

    def _scheduled(self, rules: Any, given: dict[str, Any]) -> Any:
        total = given.pop("total_iteration", None)
        self.epochs = given.pop("epochs_per_iteration", None) or 1
        self.iterations = total or given.pop("num_iterations", None) or 0
        if not has_sparsity(rules):
            return rules
        # The last of v1's iterations has the final sparsity; v2 has one iteration more.
        last = self.iterations if total else (self.iterations - 1) * self.epochs
        return on_schedule(rules, last, self.epochs)

    def _bind(self) -> None:
        with as_schema_errors():
            super()._bind()

    # -- training inside compress() --------------------------------------------------------------------

    def compress(self, *args: Any, **kwargs: Any) -> Any:
        """Compress the model; the constructor's trainer or evaluator runs here."""
        model = self.attach(*args, **kwargs)
        if self.trainer is not None or self.evaluator is not None or self.finetuner is not None:
            with training_mode(self.bound_model):
                self._train_inside()
        return model

    def attach(self, *args: Any, **kwargs: Any) -> Any:
        """Compress as the current class does, without training."""
        return super().compress(*args, **kwargs)

    def _train_inside(self) -> None:
        if isinstance(self, SlimPruner):
            self._train_slim(self.masker.training_epochs)
        elif isinstance(self, CollectingPruner) and not self.masker.is_ready():
            self._train_once(0, max_steps=self.masker.training_batches)
            self.finish_collecting()
        elif isinstance(self, ScheduledPruner):
            pruner: Any = self
            for epoch in range(self.iterations * self.epochs):
                pruner.update_epoch(epoch)
                self._train_once(epoch)
            pruner.update_epoch(self.iterations * self.epochs)

    def _train_slim(self, epochs: int) -> None:
        pruner: Any = self
        if self.evaluator is not None and epochs:
            self.run_evaluator(None, epochs)
        else:
            for epoch in range(epochs):
                self._train_once(epoch)
        pruner.update_epoch(epochs)

    def _train_once(self, epoch: int, max_steps: int | None = None) -> None:
        if self.evaluator is not None:
            self.run_evaluator(max_steps, None)
        elif self.finetuner is not None:
            self.finetuner(self.bound_model)
        elif self.trainer is not None:
            call_trainer(self.trainer, self.bound_model, self.optimizer, self.criterion, epoch)

    def run_evaluator(self, max_steps: int | None, max_epochs: int | None) -> None:
        """Train with the evaluator, while this compressor follows its steps."""
        with self.evaluator.serving(self):
            self.evaluator.train(self.bound_model, max_steps, max_epochs)

    def finish_collecting(self) -> None:
        """Prune by the statistics so far, if the training ended before all batches were seen."""
        pruner: Any = self
        if not pruner.masker.is_ready():
            pruner.masker.finish()
            pruner.update_mask()

    # -- queries of NNI's compressors --------------------------------------------------------------

    def get_masks(self) -> dict[str, dict[str, Any]]:
        """Return the masks as ``{layer: {'weight': mask, 'bias': mask}}``."""
        found = {}
        for wrapper in self.get_modules_wrapper() if isinstance(self, Pruner) else ():
            held = {"weight": wrapper.weight_mask, "bias": wrapper.bias_mask}
            found[wrapper.name] = {k: v.clone() for k, v in held.items() if v is not None}
        return found

    def load_masks(self, masks: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply masks from :meth:`get_masks` or an export."""
        changed = []
        for wrapper in self.get_modules_wrapper():
            own = {f"{k}_mask": v for k, v in masks.get(wrapper.name, {}).items() if v is not None}
            if own:
                wrapper.set_masks(own)
                changed.append(wrapper)
        if self.is_wrapped:
            self._backend.apply_masks(changed, self.optimizer)

    def get_pruned_weights(self, dim: int = 0) -> dict[str, tuple[int, int]]:
        """Log and return the number of remaining slices along a dimension of each layer, and the total."""
        counts = {}
        for wrapper in self.get_modules_wrapper():
            mask = wrapper.weight_mask
            others = [axis for axis in range(mask.dim()) if axis != dim]
            remain = int(mask.sum(others).count_nonzero()) if others else int(mask.sum())
            counts[wrapper.name] = remain, mask.shape[dim]
            log.info("simulated prune %s remain/total: %d/%d", wrapper.name, *counts[wrapper.name])
        return counts

    show_pruned_weights = get_pruned_weights


class AdaptedQuantizer(Adapted, QuantizerFiles, Quantizer):
    """A quantizer behind NNI's paths."""

    _wrapper_type = SeenQuantizerWrapper
    follows_settings: ClassVar[bool] = True  # NNI's own defaults, which a program could set

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        rules = given.get("config_list")
        if self.follows_settings:
            rules = with_settings(getattr(type(self).adapts, "__name__", ""), rules)
        return super()._translated({**given, "config_list": rules})

    def _gradient_of(self, wrapper: Any, quant_type: QuantType) -> type[QuantGrad] | None:
        """Return the gradient function of one quantizer, also for rules with seven arguments."""
        rule = super()._gradient_of(wrapper, quant_type)
        if rule is not None and wants_grid(rule):
            return with_grid(rule, self, wrapper, quant_type)
        return rule
