"""v3's fusion: several compressors of one model that share one training run."""

from __future__ import annotations

from typing import Any

import torch

from lilliput.compat.nni.classes.evaluators import Evaluator
from lilliput.compat.nni.classes.stacks import Adapted
from lilliput.compat.nni.classes.training import training_mode
from lilliput.errors import ConfigError, StageError
from lilliput.pruning.collecting import CollectingPruner


class Fused(Adapted):
    """A compressor that may share its model with others created before: v3's fusion.

    Masks are applied before quantization, regardless of the order of creation. ``compress()`` of the
    last one trains once, and all of them follow its steps.
    """

    others: tuple[Any, ...] = ()  # created before, the latest first

    @classmethod
    def from_compressor(
        cls,
        compressor: Any,
        new_config_list: Any,
        *args: Any,
        evaluator: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return another compressor of a compressor's model, with the same evaluator.

        Parameters
        ----------
        compressor : Compressor
            A pruner or quantizer of v3.
        new_config_list : list of dict
            The config list of the new one.
        *args, **kwargs
            Arguments of the constructor after the evaluator.
        evaluator : Evaluator, optional
            Required if ``compressor`` has none.
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
        """All compressors of the model: this one, and those created before it."""
        return [self, *self.others]

    def train_together(self, max_steps: int | None, max_epochs: int | None) -> None:
        """Attach all compressors, train once while they follow, and finish each of them."""
        if self.evaluator is None:
            raise StageError(
                f"{type(self).__name__}: compress() trains, which requires an evaluator; pass one to the "
                "constructor, or evaluator= to from_compressor()."
            )
        if max_steps is None and max_epochs is None:
            raise ConfigError(
                f"{type(self).__name__}: compress() received neither max_steps nor max_epochs; expected "
                "one of them, the length of the training."
            )
        self.attach_all()
        with training_mode(self.bound_model), self.evaluator.serving(*self.fused_compressors):
            self.evaluator.train(self.bound_model, max_steps, max_epochs)
        for compressor in self.fused_compressors:
            compressor.finish_training(max_steps, max_epochs)

    def attach_all(self) -> None:
        """Attach every compressor, in the order of creation."""
        for compressor in reversed(self.fused_compressors):
            if compressor.optimizer is None and self.evaluator is not None:
                compressor.bind_optimizer(self.evaluator.optimizer)
            if not compressor.is_wrapped:
                compressor.attach()

    def finish_training(self, max_steps: int | None, max_epochs: int | None) -> None:
        """Finish after the end of the training."""
        if isinstance(self, CollectingPruner):
            self.finish_collecting()

    def needs_training(self) -> bool:
        """Whether this compressor takes part in training."""
        return isinstance(self, CollectingPruner) and not self.masker.is_ready()

    def get_masks(self) -> dict[str, dict[str, Any]]:
        """Return the masks of all pruners of the model, as ``{layer: {'weight': mask}}``."""
        found: dict[str, dict[str, Any]] = {}
        for compressor in reversed(self.fused_compressors):
            for name, masks in Adapted.get_masks(compressor).items():
                found[name] = _together(found.get(name, {}), masks)
        return found

    def track_forward(self, *args: Any, **kwargs: Any) -> None:
        """Call the model once; v3 determined shapes by that, which are known here."""
        with torch.no_grad():
            self.bound_model(*args, **kwargs)

    def unwrap_model(self) -> Any:
        """Turn the model into a plain one; pruned weights are zeros."""
        for compressor in self.fused_compressors:
            compressor._unwrap_model()
        return self.bound_model

    def wrap_model(self) -> Any:
        """Apply all masks and quantizers again."""
        for compressor in reversed(self.fused_compressors):
            compressor._wrap_model()
        return self.bound_model


def _further_parameters(cls: type[Adapted]) -> list[str]:
    """Return the constructor's positional arguments after the evaluator."""
    first = next(iter(cls.forms), None)
    known = ("model", "config_list", "evaluator", "existed_wrappers")
    return [] if first is None else [name for name in first.parameters if name not in known]


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the combined masks of two pruners of one layer."""
    return {
        key: one[key] * other[key] if key in one and key in other else one.get(key, other.get(key))
        for key in {**one, **other}
    }
