"""LotteryTicketPruner: train, prune a fifth, rewind to the early weights, and train again.

Frankle & Carbin, "The lottery ticket hypothesis", 2019. Rewinding to the weights of an early epoch instead
of the initial ones ("late rewinding") makes it work on larger networks: Frankle et al., "Linear mode
connectivity and the lottery ticket hypothesis", 2020. After round ``r`` of ``n`` a layer has a sparsity of::

    s_r = 1 - (1 - s) ** (r / n)

so that each round removes the same share of the remaining weights.

>>> import torch
>>> model = torch.nn.Linear(10, 10)
>>> first = model.weight.detach().clone()
>>> pruner = LotteryTicketPruner(model, [{"sparsity": 0.36, "prune_iterations": 2}], epochs_per_round=3)
>>> model = pruner.compress()
>>> for epoch in range(pruner.epochs):
...     pruner.update_epoch(epoch)
...     if epoch in (0, 3, 6):
...         kept = model.weight != 0
...         print(epoch, int((~kept).sum()), bool((model.weight == first)[kept].all()))
...     with torch.no_grad():
...         _ = model.weight.add_(0.01)  # where a training loop would be
0 0 True
3 20 True
6 36 True
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from lilliput.config.spec import Count, Rule, SparsityRule, TotalKeys
from lilliput.core.arguments import passes_on
from lilliput.core.checks import checked_flag
from lilliput.errors import StageError, UnsupportedModelError
from lilliput.ops.namespace import namespace
from lilliput.pruning.criterion import check_counts
from lilliput.pruning.named import NamedCriterionArguments
from lilliput.pruning.scheduled import ScheduledPruner, final_sparsity
from lilliput.registry import register_pruner

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SHARE = 0.2  # of the remaining weights are pruned per round, if the rule does not set their number


class LotteryRule(SparsityRule, TotalKeys):
    """How much to remove in the end, and in how many rounds."""

    prune_iterations: Count | None = Field(
        None,
        description="Number of rounds; by default, enough to remove 20 % of the remaining weights in each.",
    )

    @property
    def asked(self) -> float | None:
        """The sparsity of each layer, or of all layers of the rule together."""
        return super().asked if self.total_sparsity is None else self.total_sparsity

    def settings(self) -> dict[str, Any]:
        """As in :meth:`Rule.settings`, with all targets under the keys of a schedule."""
        number = self.prune_iterations or rounds(self.asked)
        settings = super().settings() | {"prune_iterations": number}
        settings.pop("sparsity", None)
        own = super().asked
        return settings if own is None else settings | {"final_sparsity": own}


def rounds(sparsity: float | None) -> int:
    """Return the number of rounds if each removes at most 20 % of the remaining weights.

    Examples
    --------
    >>> rounds(0.2), rounds(0.9), rounds(0.0)
    (1, 11, 1)
    """
    least = math.log1p(-(sparsity or 0.0)) / math.log1p(-_SHARE)
    return max(1, math.ceil(least - 1e-9))


@register_pruner("lottery_ticket")
class LotteryTicketPruner(ScheduledPruner):
    """Prune in rounds of training, and rewind the remaining weights to early values after each.

    Call ``update_epoch(epoch)`` at the start of each epoch, counting from 0, for :attr:`epochs` epochs.
    After each round, even if its share of the weights rounds to none, all parameters of the model are
    rewound, pruned or not, and the optimizer is reset; reset the learning rate as well if you change it (a
    schedule inside a Keras optimizer restarts by itself). Running statistics of norms keep their values, and
    so do parameters that other compressors add, such as the scales of
    :class:`~lilliput.quantization.lsq.LSQQuantizer`: scales of activations have no early value, because the
    first batch sets them. The early values are part of ``state()``, so that an interrupted run can be
    resumed.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``sparsity``, or ``total_sparsity``
        (ranked over all the rule's layers, as in the paper for deep networks), optionally
        ``prune_iterations`` (rounds; by default each removes 20 % of the remaining weights) and
        ``granularity``.
    pruning_algorithm, example_inputs, groups, pruning_params
        See :class:`~lilliput.pruning.named.NamedCriterionPruner`; by default by magnitude.
    epochs_per_round : int
        Epochs of training before each pruning, and after the last one.
    rewind_epoch : int
        Rewind to the weights at the start of this epoch; 0 means those at ``compress()``. The first
        round is longer by this number of epochs.
    reset_weights : bool
        False: only prune in rounds, and keep the trained weights.
    """

    paper = "Frankle & Carbin 2019, The lottery ticket hypothesis"

    rule: ClassVar[type[Rule]] = LotteryRule
    _first_epoch = 0
    _is_round_over: bool = False  # and the weights are not rewound yet

    @passes_on(NamedCriterionArguments, to=ScheduledPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        pruning_algorithm: str | type = "level",
        *,
        epochs_per_round: int = 1,
        rewind_epoch: int = 0,
        reset_weights: bool = True,
        **others: Unpack[NamedCriterionArguments],
    ) -> None:
        check_counts(1, epochs_per_round=epochs_per_round)
        check_counts(0, rewind_epoch=rewind_epoch)
        self.epochs_per_round, self.rewind_epoch = epochs_per_round, rewind_epoch
        self.reset_weights = checked_flag("reset_weights", reset_weights)
        self._others: list[Any] = []  # wrappers of all parameters, which are not attached
        super().__init__(model, config_list, optimizer, pruning_algorithm, **others)
        self.set_wrappers_attribute("early_values", None)  # of all parameters, held by the first

    @property
    def rounds(self) -> int:
        """The number of training rounds that end with pruning; one more follows."""
        found = [int(w.config["prune_iterations"]) for w in self.get_modules_wrapper()]
        return max(found, default=0)

    @property
    def epochs(self) -> int:
        """The total number of epochs."""
        return self.rewind_epoch + self.epochs_per_round * (self.rounds + 1)

    def target_sparsity(self, wrapper: Any, epoch: int) -> float:
        """Return the sparsity of a layer after the rounds completed before an epoch."""
        number, final = wrapper.config["prune_iterations"], final_sparsity(wrapper.config)
        over = min(self._rounds_before(epoch), number)
        return float(final if over == number else 1 - (1 - final) ** (over / number))

    def update_epoch(self, epoch: int) -> None:
        """Move on to an epoch; at the end of a round, prune and rewind the weights."""
        before = self._rounds_before(self.now_epoch)
        super().update_epoch(epoch)
        if min(self._rounds_before(self.now_epoch), self.rounds) > before:
            self._is_round_over = True
        if self.is_wrapped and self.now_epoch == self.rewind_epoch:
            self._remember()

    def _rounds_before(self, epoch: int) -> int:
        """Return how many rounds of training end before an epoch, if they went on forever."""
        return max(epoch - self.rewind_epoch, 0) // self.epochs_per_round

    def bind_model(self, model: Any) -> None:
        """As in :class:`CriterionPruner`; record the early values if ``rewind_epoch`` is 0."""
        super().bind_model(model)
        layers = {id(x): x for x in self._backend.parameters(model).values()}
        self._others = [self._backend.wrap(self.kind, x, self) for x in layers.values()]
        if self.rewind_epoch == 0:
            self._remember()

    def _take_state(self) -> None:
        super()._take_state()
        self._is_round_over = False

    def _remember(self) -> None:
        """Record the values of all parameters, once."""
        (first, *_) = self.get_modules_wrapper()
        if self.reset_weights and first.early_values is None:
            found = ((w.name, w.weight) for w in self._others)
            first.early_values = {name: namespace(t).detach(t) * 1 for name, t in found}

    def _follow_up(self, has_masks: bool) -> None:
        super()._follow_up(has_masks)
        # The numbers of zeros before and after a round may round to the same.
        if not has_masks and (not self._is_round_over or self._unmasked()):
            return
        # Masks computed by compress() itself are not preceded by a round of training.
        if self.reset_weights and self._has_compressed:
            self._go_back()
        self._is_round_over = False

    def _go_back(self) -> None:
        """Set all parameters to their early values, and reset the optimizer."""
        (first, *_) = self.get_modules_wrapper()
        values = first.early_values
        if values is None:
            raise StageError(
                "LotteryTicketPruner: there are no weights to rewind to, because "
                f"update_epoch({self.rewind_epoch}) was never called; call update_epoch(epoch) in every "
                "epoch, or load_state() of the run before."
            )
        for wrapper in self._others:
            held, value = wrapper.weight, values[wrapper.name]
            xp = namespace(held)
            xp.assign(held, value)
            # Compare as arrays: the model may have been moved to another device since.
            now, wanted = xp.to_numpy(wrapper.weight), xp.to_numpy(value)
            if not ((now == wanted) | (wanted != wanted)).all():  # NaN differs from itself
                raise UnsupportedModelError(
                    f"{wrapper.name!r} cannot be rewound: it is sharded across processes (FSDP) or computed; "
                    "pass reset_weights=False, or use DistributedDataParallel."
                )
        self._backend.restart_optimizer(self.bound_model, self.optimizer)
        self._backend.apply_masks(self._every_wrapper())  # new ones follow only where there are any
