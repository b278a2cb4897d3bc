"""Pruners that train values of their own besides the weights: scores or thresholds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError, StageError
from lilliput.ops.namespace import Tensor, namespace


def sigmoid(tensor: Tensor) -> Tensor:
    """Return ``1 / (1 + exp(-x))``, in single precision at least."""
    xp = namespace(tensor)
    return 1 / (1 + xp.exp(xp.clip(-xp.widen(tensor), -80.0, 80.0)))  # exp(89) is infinite


class LearningPruner(Pruner):
    """Compute each layer's weight from the raw weight and a learned value.

    The learned values are added to the optimizer, in the parameter group of their layer's weight, but
    without weight decay. Masks are updated after each step. ``harden()`` and ``strip()`` make the computed
    weights permanent, and zeros stay zero.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`.
    """

    learned_name: ClassVar[str]
    exact_sparsity = False
    regrows = True
    computes_weights = True

    def __init__(self, model: Any = None, config_list: Any = None, optimizer: Any = None) -> None:
        super().__init__(model, config_list, optimizer)
        self.set_wrappers_attribute("is_soft", True)

    def first_value(self, wrapper: Any) -> Tensor:
        """Return the initial value of a layer's learned parameter."""
        raise NotImplementedError(f"{type(self).__name__} must override first_value().")

    def penalty(self, wrapper: Any, value: Tensor) -> Tensor:
        """Return the penalty on the learned value, as a number."""
        raise NotImplementedError(f"{type(self).__name__} must override penalty().")

    def learned(self, wrapper: Any) -> Any:
        """Return the current learned value of a layer."""
        return self._backend.value_of(getattr(wrapper, self.learned_name))

    def penalizes(self) -> bool:
        """Whether there is a penalty."""
        return True

    def ranked(self, wrapper: Any, values: Tensor, what: str) -> Tensor:
        """Return values to compute masks from, or raise if they contain NaN."""
        xp = namespace(values)
        if xp.any(xp.isnan(values)):
            raise AlgorithmError(
                f"layer {wrapper.name!r} has NaN among its {what}, so nothing can be ranked; look for NaN in "
                "the last batch and its loss, or lower the learning rate."
            )
        return values

    # -- internals ---------------------------------------------------------------------------------

    def soft_wrappers(self) -> list[Any]:
        """Return the wrappers of layers whose weights are computed."""
        return [wrapper for wrapper in self.get_modules_wrapper() if wrapper.keeps_raw()]

    def _prepare(self) -> None:
        super()._prepare()
        for wrapper in self.get_modules_wrapper():
            if self.learned_name not in wrapper.tensors():
                value = self._backend.parameter(self.first_value(wrapper))
                wrapper.set_attribute(self.learned_name, value)
        if not self._backend.shows_training:
            self._penalize()

    def _watch_optimizer(self) -> None:
        """Ignore steps before ``compress()``: there is nothing to learn yet."""

    def _is_due(self) -> bool:
        return bool(self.soft_wrappers())

    def _before_step(self) -> tuple[Callable[[], None], ...]:
        return (self._penalize,) if self._backend.shows_training else ()

    def _penalize(self) -> None:
        for wrapper in self.soft_wrappers() if self.penalizes() else ():

            def penalty(value: Tensor, wrapper: Any = wrapper) -> Tensor:
                return self.penalty(wrapper, value)

            self.add_penalty(wrapper, (self.learned_name,), penalty)

    def _after_step(self) -> None:
        """Synchronize the learned values across processes."""
        super()._after_step()
        wrappers = self.soft_wrappers()
        if wrappers and self._backend.processes() > 1:
            if self._backend.is_joining(self.bound_model):
                raise StageError(
                    f"{type(self).__name__} averages learned values over all processes, and inside join() "
                    "some may have stopped; train without join()."
                )
            self._backend.average([getattr(w, self.learned_name) for w in wrappers])
