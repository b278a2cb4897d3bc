"""NNI's ``MovementPruner``: it trains inside ``compress()``, with the given evaluator or trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lilliput.compat.nni.classes.adapted_pruners import AdaptedPruner, SecondStackPruner
from lilliput.compat.nni.classes.third import ThirdStackPruner
from lilliput.compat.nni.config.target_rules import Target
from lilliput.errors import ConfigError

_SCORE_RATE = 1e-2  # the learning rate of NNI's scores, which had their own Adam
_OWN = ("warm_up_step", "cool_down_beginning_step", "movement_mode", "regular_scale")
_RENAMED = {"warmup_step": "warm_up_step", "cooldown_begin_step": "cool_down_beginning_step"}


class MovementForm(SecondStackPruner):
    """v2's movement pruner: ``training_epochs`` or ``training_steps`` set the length of the training."""

    trains_for: tuple[int | None, int | None] = (None, None)

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        given = {_RENAMED.get(key, key): value for key, value in given.items()}
        self.trains_for = given.pop("training_steps", None), given.pop("training_epochs", None)
        if given.pop("sparse_granularity", None) == "auto":
            raise ConfigError(
                "MovementPruner: sparse_granularity 'auto' is not available; blocks are 'granularity': "
                "[rows, columns] in a rule, whole heads and neurons are what L1NormPruner of lilliput.torch "
                "removes with example_inputs."
            )
        own = {key: given.pop(key, None) for key in _OWN}
        own = {key: value for key, value in own.items() if value is not None}
        translated = super()._translated(given)
        scale = _score_scale(translated.get("optimizer"))
        return {**translated, **own, "score_scale": scale}

    def _check_masks(self, wrapper: Any, answer: Any) -> dict[str, Any]:
        """Do not mask biases, because their weights may become nonzero again."""
        return AdaptedPruner._check_masks(self, wrapper, answer)

    def follow_targets(self, targets: Sequence[Target | None]) -> None:
        """Raise for targets that require a ranking."""
        raise ConfigError(
            "MovementPruner: rules have 'sparse_ratio' or 'sparse_threshold' for the weights of each layer; "
            "groups, other targets and granularities are not available."
        )

    def _train_inside(self) -> None:
        steps, epochs = self.trains_for
        if self.evaluator is not None:
            self.run_evaluator(steps, epochs)
        else:
            for epoch in range(epochs or 1):
                self._train_once(epoch)


class ThirdStackMovement(MovementForm, ThirdStackPruner):
    """v3's movement pruner: ``compress(max_steps, max_epochs)``; a ``sparse_threshold`` means 'soft'."""

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        rules, is_soft = _by_threshold(given.get("config_list"))
        mode = {"movement_mode": "soft"} if is_soft else {"regular_scale": None}
        return super()._translated({**given, "config_list": rules, **mode})

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Train with the evaluator, and return the model with its masks."""
        self.trains_for = max_steps, max_epochs
        if self.others:
            self.train_together(max_steps, max_epochs)
        else:
            AdaptedPruner.compress(self)
        return self.bound_model, self.get_masks()

    def needs_training(self) -> bool:
        """Whether scores come from training; always."""
        return True


def _by_threshold(rules: Any) -> tuple[Any, bool]:
    """Return rules with thresholds renamed to sparsity, and whether there are any."""
    if not isinstance(rules, (list, tuple)):
        return rules, False
    chosen = [r for r in rules if isinstance(r, Mapping) and not r.get("exclude")]
    soft = [rule for rule in chosen if rule.get("sparse_threshold") is not None]
    if soft and len(soft) < len(chosen):
        raise ConfigError(
            "MovementPruner: received rules with 'sparse_threshold' and others with 'sparse_ratio'; create "
            "one pruner for each."
        )
    if not soft:
        return rules, False
    renamed = [
        {"sparse_ratio" if k == "sparse_threshold" else k: v for k, v in rule.items()}
        if rule in soft
        else rule
        for rule in rules
    ]
    return renamed, True


def _score_scale(optimizer: Any) -> float:
    """Return the factor by which scores must move faster to match NNI's learning rate."""
    groups = getattr(optimizer, "param_groups", None)
    is_adam = "Adam" in type(optimizer).__name__
    rates = [group["lr"] for group in groups or () if group.get("lr")]
    return max(1.0, _SCORE_RATE / float(rates[0])) if is_adam and rates else 1.0
