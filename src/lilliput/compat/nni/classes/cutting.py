"""Cut out what an iterative pruner of the second stack has masked, and fine-tune with its evaluator."""

from __future__ import annotations

from typing import Any

from lilliput.compat.nni.classes.adapted_pruners import SecondStackPruner
from lilliput.compat.nni.tools.speedup import ModelSpeedup
from lilliput.errors import ConfigError, StageError


class CutsInTheEnd(SecondStackPruner):
    """A pruner that cuts masked channels out of its model if its argument ``speedup`` is set."""

    cuts: bool = False
    dummy_input: Any = None

    def _take_cutting(self, given: dict[str, Any], evaluator: Any) -> None:
        """Take the arguments for cutting; the evaluator may know the inputs of the model."""
        self.cuts, inputs = bool(given.pop("speedup", False)), given.pop("dummy_input", None)
        self.dummy_input = getattr(evaluator, "dummy_input", None) if inputs is None else inputs
        if self.cuts and self.dummy_input is None:
            raise ConfigError(f"{type(self).__name__}: speedup needs dummy_input.")

    def get_masks(self) -> dict[str, dict[str, Any]]:
        """As in :meth:`SecondStackPruner.get_masks`; empty if the model was cut."""
        return {} if self.cuts and not self.is_wrapped else super().get_masks()

    def _cut_out(self) -> None:
        """Replace the model by a smaller one; it stays masked if nothing can be cut."""
        masks, title = super().get_masks(), type(self).__name__
        if self.evaluator is not None:
            _check_traced(self.evaluator, title)
        self.strip()
        small = ModelSpeedup(self.bound_model, self.dummy_input, masks)
        try:
            self.bound_model = small.speedup_model()
        finally:
            if small.result is None:  # nothing was cut: the zeros are still enforced
                self._wrap_model()
        if self.evaluator is not None and not self.is_wrapped:
            new_optimizer(self.evaluator, self.bound_model, title)


def new_optimizer(evaluator: Any, model: Any, title: str) -> None:
    """Give an evaluator an optimizer for another model, created like its own."""
    _check_traced(evaluator, title)
    optimizer = evaluator.optimizer
    if optimizer is not None:
        rest = optimizer.trace_args[1:]
        settings = {k: v for k, v in optimizer.trace_kwargs.items() if k != "params"}
        made = optimizer.trace_symbol(model.parameters(), *rest, **settings)
        evaluator.optimizers = evaluator.optimizer = made


def _check_traced(evaluator: Any, title: str) -> None:
    if evaluator.optimizer is not None and not hasattr(evaluator.optimizer, "trace_symbol"):
        raise StageError(
            f"{title}: after the speedup, an optimizer has to be created for the remaining parameters; "
            "create it with nni.trace(SGD)(model.parameters(), …)."
        )
