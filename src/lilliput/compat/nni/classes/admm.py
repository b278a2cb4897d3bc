"""NNI's ``ADMMPruner``, which runs all its iterations in ``compress()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lilliput.compat.nni.classes.adapted_pruners import AdaptedPruner, SecondStackPruner
from lilliput.compat.nni.classes.arguments import Unknown
from lilliput.errors import ConfigError
from lilliput.pruning.admm import ADMMPruner

_GRANULARITIES = {"fine-grained": "level", "coarse-grained": "l1"}


class IterationsInside(AdaptedPruner, ADMMPruner):
    """Train for each iteration with the constructor's trainer or evaluator, then prune."""

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        names = ("iterations", "num_iterations", "training_epochs", "epochs_per_iteration")
        counts = {name: given.pop(name, None) for name in names}
        row, granularity = given.pop("row", None), given.pop("granularity", None)
        base = given.pop("base_algo", None)
        if granularity is not None and not isinstance(granularity, Unknown):
            if granularity not in _GRANULARITIES:
                raise ConfigError(
                    f"ADMMPruner: granularity: received {granularity!r}, expected one of "
                    f"{sorted(_GRANULARITIES)}."
                )
            base = _GRANULARITIES[granularity]
        given["config_list"] = _with_rho(given.get("config_list"), 1e-4 if row is None else row)
        translated = super()._translated(given)
        model = translated.get("model")
        is_missing = self.trainer is not None and translated.get("optimizer") is None
        if is_missing and isinstance(model, torch.nn.Module):  # not if a program is only read
            # As in v1, which created the optimizer that its trainer is called with.
            translated["optimizer"] = torch.optim.Adam(
                model.parameters(), lr=1e-3, weight_decay=5e-5
            )
            self.criterion = self.criterion or torch.nn.CrossEntropyLoss()
        first = counts["iterations"] or counts["num_iterations"]
        epochs = counts["epochs_per_iteration"] or counts["training_epochs"]
        return {
            **translated,
            "pruning_algorithm": base or "level",
            "iterations": 0 if first is None else first,
            "epochs_per_iteration": epochs or 1,
        }

    def _train_inside(self) -> None:
        for iteration in range(self.iterations):
            first = iteration * self.epochs_per_iteration
            self.update_epoch(first)
            if self.evaluator is not None:
                self.run_evaluator(None, self.epochs_per_iteration)
                continue
            for epoch in range(first, first + self.epochs_per_iteration):
                self._train_once(epoch)
        self.update_epoch(self.iterations * self.epochs_per_iteration)


class SecondIterationsInside(IterationsInside, SecondStackPruner):
    """The same for the second stack, where ``compress()`` returns the model and its masks."""


def _with_rho(rules: Any, row: Any) -> Any:
    """Return rules with the penalty under its current name."""
    if not isinstance(rules, (list, tuple)):
        return rules
    found = []
    for rule in rules:
        if isinstance(rule, Mapping) and not rule.get("exclude"):
            rest = {key: value for key, value in rule.items() if key != "row"}
            rule = {**rest, "rho": rule.get("row", row)}
        found.append(rule)
    return found
