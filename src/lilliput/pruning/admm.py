"""ADMMPruner: pull the weights towards a sparse copy of themselves during training, then prune.

Zhang et al., "A systematic DNN weight pruning framework using alternating direction method of multipliers",
2018. While the model trains, each selected weight ``W`` is pulled to a target ``Z`` with the requested
sparsity; after some epochs the target is updated, and ``U`` accumulates the difference between them::

    loss' = loss + rho / 2 * sum (W - Z + U) ** 2
    Z = (W + U) with the smallest entries zero          U = U + W - Z

Finally the smallest weights, which are close to zero by then, are masked, and training may continue. The
penalty is applied as a gradient, added before each optimizer step: the training loop does not change.

>>> import torch
>>> model = torch.nn.Linear(10, 10)
>>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
>>> pruner = ADMMPruner(model, [{"sparsity": 0.8, "rho": 0.1}], optimizer, iterations=5)
>>> model = pruner.compress()
>>> for epoch in range(6):
...     pruner.update_epoch(epoch)
...     for _ in range(20):
...         optimizer.zero_grad()
...         (model(torch.randn(16, 10)) - 1).square().mean().backward()
...         optimizer.step()
>>> int((model.weight == 0).sum())
80
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from lilliput.config.spec import Rule, SparsityRule
from lilliput.core.arguments import passes_on
from lilliput.core.masker import Targets, WeightMasker
from lilliput.errors import ConfigError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.collecting import CollectingMasker
from lilliput.pruning.criterion import check_counts, checked_epoch
from lilliput.pruning.named import NamedCriterionArguments, NamedCriterionPruner
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.registry import register_pruner

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ADMMRule(SparsityRule):
    """How much to remove, and the weight of the penalty."""

    rho: float = Field(1e-2, gt=0, allow_inf_nan=False, description="Weight of the penalty.")


@register_pruner("admm")
class ADMMPruner(NamedCriterionPruner, OneShotPruner):
    """Train with a penalty that pulls weights towards sparsity, then prune.

    Call ``update_epoch(epoch)`` at the start of each epoch, counting from 0; masks are computed at epoch
    ``iterations * epochs_per_iteration``, and fine-tuning follows.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`; the penalty needs the optimizer. Rules take
        ``sparsity``, optionally with ``granularity``, and ``rho``, the weight of the penalty (0.01). With
        plain SGD, choose ``rho`` so that its product with the learning rate and the steps per iteration
        is about 1: less has hardly any effect.
    pruning_algorithm : str
        The one-shot pruner whose criterion ranks weights or channels: one that uses only weights, such
        as ``"level"`` or ``"l1"``.
    example_inputs, groups, pruning_params : optional
        See :class:`~lilliput.pruning.named.NamedCriterionPruner`.
    iterations : int
        How many times the target is updated; 0 prunes at ``compress()``.
    epochs_per_iteration : int
        Epochs between two updates of the target.
    """

    paper = "Zhang et al. 2018, A systematic DNN weight pruning framework using ADMM"
    backends = ("torch",)
    rule: ClassVar[type[Rule]] = ADMMRule
    _first_epoch = 0
    needs_optimizer = True
    tracked = ("now_epoch", "moves")
    now_epoch: int = 0
    moves: int = 0  # updates of the target so far

    @passes_on(NamedCriterionArguments, to=NamedCriterionPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        pruning_algorithm: str | type = "level",
        *,
        iterations: int = 10,
        epochs_per_iteration: int = 1,
        **others: Unpack[NamedCriterionArguments],
    ) -> None:
        check_counts(0, iterations=iterations)
        check_counts(1, epochs_per_iteration=epochs_per_iteration)
        self.iterations, self.epochs_per_iteration = iterations, epochs_per_iteration
        super().__init__(model, config_list, optimizer, pruning_algorithm, **others)
        self.set_wrappers_attribute("has_target", False)

    def masker_of(self, algorithm: str | type) -> type[WeightMasker]:
        """Return the criterion of a one-shot pruner, if it uses only weights."""
        masker = super().masker_of(algorithm)
        looks_at_data = issubclass(masker, CollectingMasker) or not masker.only_watches
        is_plain = issubclass(masker, ScoreMasker) and not looks_at_data
        if not (is_plain or getattr(masker, "reads_weights", False)):
            raise ConfigError(
                f"pruning_algorithm {algorithm!r} uses more than weights; expected one such as 'level' or "
                "'l1'."
            )
        return masker

    @property
    def is_over(self) -> bool:
        """Whether the epochs under the penalty are over."""
        return self.now_epoch >= self.iterations * self.epochs_per_iteration

    def targets(self) -> Targets:
        """Return the layers without a mask; none during the penalty epochs."""
        return super().targets() if self.is_over else []

    def update_epoch(self, epoch: int) -> None:
        """Follow the training: update the target after each iteration, and compute masks at the end."""
        self.now_epoch = checked_epoch(epoch)
        self._check_optimizer()
        if self.is_wrapped and not self.is_over and self._penalized():
            due = self.now_epoch // self.epochs_per_iteration
            if self.moves < due:  # once, even if epochs are skipped: weights have moved once
                self._move_targets()
                self.moves = due

    def _prepare(self) -> None:
        super()._prepare()
        for wrapper in self.get_modules_wrapper() if self.iterations else ():
            if not hasattr(wrapper, "dual"):
                weight = wrapper.weight
                xp = namespace(weight)
                nothing = xp.zeros_like(xp.detach(weight))
                wrapper.set_attribute("sparse_target", nothing)
                wrapper.set_attribute("dual", nothing)
        if not self.is_over and not all(w.has_target for w in self._penalized()):
            self._move_targets(is_first=True)

    def _penalized(self) -> list[Any]:
        return [w for w in self.get_modules_wrapper() if hasattr(w, "dual") and not w.if_calculated]

    def _move_targets(self, is_first: bool = False) -> None:
        """Set the target of each layer to the nearest weight with the requested sparsity."""
        wrappers = self._penalized()
        with self._backend.no_grad():
            sums = {w: _copied(w.weight) + w.dual for w in wrappers}
            masks = self._masks_for(sums)
            for wrapper, total in sums.items():
                mask = masks.get(wrapper)
                xp = namespace(total)
                kept = total if mask is None else total * xp.to_float(mask, like=total)
                wrapper.set_attribute("sparse_target", kept)
                wrapper.has_target = True
                if not is_first:
                    wrapper.set_attribute("dual", total - kept)

    def _masks_for(self, values: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the masks that the criterion would compute for other values of the weights."""
        before = {wrapper: _copied(wrapper.weight) for wrapper in values}
        try:
            for wrapper, value in values.items():
                namespace(value).assign(wrapper.weight, value)
            due = [(wrapper, self._sparsity_of(wrapper)) for wrapper in values]
            answers = dict(self.masker.calc_masks(due))
        finally:
            for wrapper, value in before.items():
                namespace(value).assign(wrapper.weight, value)
        return {w: answers[w]["weight_mask"] for w in values if answers.get(w) is not None}

    def _before_step(self) -> tuple[Any, ...]:
        return (*super()._before_step(), *((self._pull,) if self.iterations else ()))

    def _pull(self) -> None:
        """Add the gradient of the penalty."""
        for wrapper in () if self.is_over else self._penalized():

            def penalty(weight: Tensor, wrapper: Any = wrapper) -> Tensor:
                gap = weight - wrapper.sparse_target + wrapper.dual
                xp = namespace(gap)
                return xp.sum(xp.flatten(gap * gap), axis=0) * (wrapper.config["rho"] / 2)

            self.add_penalty(wrapper, ("weight",), penalty)

    def _is_due(self) -> bool:
        return self.is_over and super()._is_due()

    def _mark_done(self, wrappers: Sequence[Any]) -> None:
        if self.is_over:
            super()._mark_done(wrappers)

    def _missing(self) -> str:
        left = self.iterations * self.epochs_per_iteration - self.now_epoch
        if self._wrappers is None or not self._needs_criterion() or left <= 0:
            return super()._missing()
        return f"{left} epochs with the penalty are missing"


def _copied(tensor: Any) -> Any:
    return namespace(tensor).detach(tensor) * 1
