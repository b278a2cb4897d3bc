"""The three generations of NNI's classes, as thin forms of Lilliput's own.

A class behind one of NNI's paths is a subclass of the class of today with that name. It reads the
constructor of its generation, runs a trainer or an evaluator inside ``compress()`` where there is one,
and answers in the form of its generation; everything else is inherited.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from lilliput.compat.nni.arguments import Form, read_arguments
from lilliput.compat.nni.failures import as_schema_errors
from lilliput.compat.nni.gradients import wants_grid, with_grid
from lilliput.compat.nni.rules import has_own_sparsity, in_total, on_schedule
from lilliput.compat.nni.training import call_trainer, training_mode
from lilliput.compat.nni.wrappers import SeenPrunerWrapper, SeenQuantizerWrapper
from lilliput.errors import ConfigError, StageError
from lilliput.pruning.collecting import CollectingPruner
from lilliput.pruning.scheduled import ScheduledPruner
from lilliput.torch import (
    Compressor,
    Pruner,
    PTQQuantizer,
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
_IGNORED = ("log_dir", "keep_intermediate_result", "existed_wrappers", "is_bias_correction")


class Adapted(Compressor):
    """What all classes behind NNI's paths have in common."""

    forms: ClassVar[tuple[Form, ...]] = ()
    strict_names = False  # NNI warned, and went on with what did match
    trainer: Any = None
    criterion: Any = None
    evaluator: Any = None
    finetuner: Any = None
    iterations: int = 0
    epochs: int = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if self.forms and not self._is_of_today(args, kwargs):
            given = read_arguments(type(self).__name__, self.forms, args, kwargs)
            args, kwargs = (), self._translated(given)
        super().__init__(*args, **kwargs)

    def _is_of_today(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call names arguments that only the constructor of today has."""
        known = {name for each in self.forms for name in each.parameters}
        return bool(kwargs.keys() - known) and not args[2:]

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of today's constructor, and keep those of a training run."""
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
        if mode == "global" or given.pop("global_sort", False) or isinstance(self, SlimPruner):
            rules = in_total(rules)
        if isinstance(self, ScheduledPruner):
            rules = self._scheduled(rules, given)
        given["config_list"] = rules
        if mode not in ("normal", "global", "dependency_aware"):
            raise ConfigError(f"{type(self).__name__}: mode {mode!r} is not available.")
        given = {key: value for key, value in given.items() if value is not None}
        unused = [key for key, value in given.items() if key not in (*_KEPT, *_IGNORED) and value]
        if unused:
            raise ConfigError(f"{type(self).__name__}: {unused[0]} is not available here.")
        return {key: value for key, value in given.items() if key in _KEPT}

    def _scheduled(self, rules: Any, given: dict[str, Any]) -> Any:
        total = given.pop("total_iteration", None)
        self.epochs = given.pop("epochs_per_iteration", None) or 1
        self.iterations = total or given.pop("num_iterations", None) or 0
        if not has_own_sparsity(rules):
            return rules
        # The last of v1's iterations has the final sparsity; v2 counts one iteration more.
        last = self.iterations if total else (self.iterations - 1) * self.epochs
        return on_schedule(rules, last, self.epochs)

    def _bind(self) -> None:
        with as_schema_errors():
            super()._bind()

    # -- training inside compress() --------------------------------------------------------------------

    def compress(self, *args: Any, **kwargs: Any) -> Any:
        """Compress the model; a trainer or evaluator that the constructor got runs here."""
        model = super().compress(*args, **kwargs)
        if self.trainer is not None or self.evaluator is not None or self.finetuner is not None:
            with training_mode(self.bound_model):
                self._train_inside()
        return model

    def _train_inside(self) -> None:
        pruner: Any = self
        if isinstance(self, SlimPruner):
            for epoch in range(self.masker.training_epochs):
                self._train_once(epoch)
            pruner.update_epoch(self.masker.training_epochs)
        elif isinstance(self, CollectingPruner) and not self.masker.is_ready():
            self._train_once(0, max_steps=self.masker.training_batches)
            if not self.masker.is_ready():
                self.masker.finish()
                self.update_mask()
        elif isinstance(self, ScheduledPruner):
            for epoch in range(self.iterations * self.epochs):
                pruner.update_epoch(epoch)
                self._train_once(epoch)
            pruner.update_epoch(self.iterations * self.epochs)

    def _train_once(self, epoch: int, max_steps: int | None = None) -> None:
        if self.evaluator is not None:
            self.evaluator.train(self.bound_model, max_steps, None if max_steps else 1)
        elif self.finetuner is not None:
            self.finetuner(self.bound_model)
        elif self.trainer is not None:
            call_trainer(self.trainer, self.bound_model, self.optimizer, self.criterion, epoch)

    # -- what NNI's compressors could be asked -----------------------------------------------------------

    def get_masks(self) -> dict[str, dict[str, Any]]:
        """Return the masks as ``{layer: {'weight': mask, 'bias': mask}}``."""
        found = {}
        for wrapper in self.get_modules_wrapper() if isinstance(self, Pruner) else ():
            held = {"weight": wrapper.weight_mask, "bias": wrapper.bias_mask}
            found[wrapper.name] = {k: v.clone() for k, v in held.items() if v is not None}
        return found

    def load_masks(self, masks: Mapping[str, Mapping[str, Any]]) -> None:
        """Put masks in force that :meth:`get_masks` or an export gave."""
        changed = []
        for wrapper in self.get_modules_wrapper():
            own = {f"{k}_mask": v for k, v in masks.get(wrapper.name, {}).items() if v is not None}
            if own:
                wrapper.set_masks(own)
                changed.append(wrapper)
        if self.is_wrapped:
            self._backend.apply_masks(changed, self.optimizer)

    def get_pruned_weights(self, dim: int = 0) -> dict[str, tuple[int, int]]:
        """Log and return how many slices along a dimension remain in each layer, of how many."""
        counts = {}
        for wrapper in self.get_modules_wrapper():
            mask = wrapper.weight_mask
            others = [axis for axis in range(mask.dim()) if axis != dim]
            remain = int(mask.sum(others).count_nonzero()) if others else int(mask.sum())
            counts[wrapper.name] = remain, mask.shape[dim]
            log.info("simulated prune %s remain/total: %d/%d", wrapper.name, *counts[wrapper.name])
        return counts

    show_pruned_weights = get_pruned_weights


class AdaptedPruner(Adapted, Pruner):
    """A pruner behind NNI's paths."""

    wrapper_type = SeenPrunerWrapper

    def export_model(
        self,
        model_path: str,
        mask_path: str | None = None,
        onnx_path: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        device: Any = None,
    ) -> None:
        """Write the model, and the masks in the nested form of NNI's files."""
        super().export_model(model_path, None, onnx_path, input_shape, device)
        if mask_path is not None:
            torch.save(self.get_masks(), mask_path)


class AdaptedQuantizer(Adapted, Quantizer):
    """A quantizer behind NNI's paths."""

    wrapper_type = SeenQuantizerWrapper

    def gradient_of(self, wrapper: Any, quant_type: QuantType) -> type[QuantGrad] | None:
        """Return what the gradient does at one quantizer, also for rules of seven arguments."""
        rule = super().gradient_of(wrapper, quant_type)
        if rule is not None and wants_grid(rule):
            return with_grid(rule, self, wrapper, quant_type)
        return rule


class Wrappers(list[Any]):
    """Wrappers as a list, that can also be asked like the dict by name that v2's second stack gave."""

    def __getitem__(self, key: Any) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys() if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """Return the names of the layers."""
        return [wrapper.name for wrapper in self]

    def values(self) -> list[Any]:
        """Return the wrappers."""
        return list(self)

    def items(self) -> list[tuple[str, Any]]:
        """Return pairs of name and wrapper."""
        return [(wrapper.name, wrapper) for wrapper in self]


class SecondStackPruner(AdaptedPruner):
    """A pruner of v2's second stack or of v3: ``compress()`` returns the model and its masks."""

    def compress(self, *args: Any, **kwargs: Any) -> Any:
        """Compress the model and return it with its masks."""
        return super().compress(*args, **kwargs), self.get_masks()

    def get_modules_wrapper(self) -> Wrappers:
        """Return the wrappers; ``['conv1']`` and ``items()`` work as well."""
        return Wrappers(super().get_modules_wrapper())

    def unwrap_model(self) -> Any:
        """Leave the model as a plain one, pruned weights are zeros."""
        self._unwrap_model()
        return self.bound_model

    def wrap_model(self) -> Any:
        """Put the masks in force again."""
        self._wrap_model()
        return self.bound_model

    def get_best_result(self) -> tuple[Any, ...]:
        """Return ``(task, model, masks, score, config_list)`` of an iterative pruner's last task."""
        return self.iterations, self.bound_model, self.get_masks(), None, self.config_list


class Fused:
    """What v3 offered to chain compressors."""

    @classmethod
    def from_compressor(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuse, with the way to do the same."""
        raise StageError(
            f"{cls.__name__}.from_compressor: make both compressors on the same model instead, each with "
            "its config list and the optimizer; masks come first and integers second, in any order."
        )


class ThirdStackPruner(Fused, SecondStackPruner):
    """A pruner of v3: ``compress(max_steps, max_epochs)``."""

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Compress the model and return it with its masks."""
        return super().compress()


class ThirdStackQuantizer(Fused, AdaptedQuantizer):
    """A quantizer of v3: trains inside ``compress()`` and returns the model and its calibration."""

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Train with the evaluator, and return the model with its ranges."""
        from lilliput.compat.nni.calibration import calibration_config

        if isinstance(self, PTQQuantizer):
            raise StageError(
                f"{type(self).__name__}: an evaluator trains, and calibration only looks. Use "
                "lilliput.torch.PTQQuantizer(model, config_list), compress() and calibrate(batches)."
            )
        Compressor.compress(self)
        if self.evaluator is not None and (max_steps or max_epochs):
            with training_mode(self.bound_model):
                self.evaluator.train(self.bound_model, max_steps, max_epochs)
        return self.bound_model, calibration_config(self)

    unwrap_model = SecondStackPruner.unwrap_model
    wrap_model = SecondStackPruner.wrap_model


BASES: dict[str, dict[str, type]] = {
    "first": {"compressor": Adapted, "pruner": AdaptedPruner, "quantizer": AdaptedQuantizer},
    "second": {"compressor": Adapted, "pruner": SecondStackPruner, "quantizer": AdaptedQuantizer},
    "third": {"compressor": Adapted, "pruner": ThirdStackPruner, "quantizer": ThirdStackQuantizer},
}


def adapt(cls: type[Compressor], stack: str, forms: Sequence[Form]) -> type:
    """Return today's class in the form of a generation."""
    base = BASES[stack][cls.kind]
    if cls in (Compressor, Pruner, Quantizer):
        return base
    members = {
        "__module__": cls.__module__,
        "__doc__": inspect.getdoc(cls),
        "adapts": cls,
        "forms": tuple(forms),
    }
    return type(cls.__name__, (base, cls), members)
