"""Cut out what an iterative pruner of the second stack has masked, and let its evaluator train the rest."""

from __future__ import annotations

from typing import Any

from lilliput.compat.nni.tools.speedup import ModelSpeedup
from lilliput.errors import StageError


def cut_out(pruner: Any, masks: dict[str, Any], dummy_input: Any) -> None:
    """Replace the model of a pruner by a smaller one; it stays masked where nothing can be cut."""
    if pruner.evaluator is not None:
        _check_traced(pruner.evaluator, type(pruner).__name__)
    pruner.strip()
    small = ModelSpeedup(pruner.bound_model, dummy_input, masks)
    try:
        pruner.bound_model = small.speedup_model()
    finally:
        if small.result is None:  # nothing was cut: the zeros are held as before
            pruner._wrap_model()
    if pruner.evaluator is not None and not pruner.is_wrapped:
        new_optimizer(pruner.evaluator, pruner.bound_model, type(pruner).__name__)


def new_optimizer(evaluator: Any, model: Any, title: str) -> None:
    """Give an evaluator an optimizer for another model, made as its own was."""
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
            f"{title}: after the speedup, an optimizer has to be made for the parameters that are left; "
            "make it by nni.trace(SGD)(model.parameters(), …)."
        )
