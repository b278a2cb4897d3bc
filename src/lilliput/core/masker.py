"""A criterion: the part of a pruning algorithm that decides which weights matter least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from lilliput.config.select import Selection
from lilliput.errors import Problem
from lilliput.ops.masks import prune_count
from lilliput.ops.namespace import namespace

Targets = Sequence[tuple[Any, float | None]]
Answers = Iterable[tuple[Any, Any]]


class WeightMasker:
    """Compute the masks of layers for given sparsities; override :meth:`calc_mask`.

    Parameters
    ----------
    model : object
        The model being pruned, for maskers that use more than one layer.
    pruner : Pruner
        The pruner; provides ``set_wrappers_attribute`` and ``add_activation_collector``.
    """

    default_types: ClassVar[frozenset[str] | None] = None  # None: those of the pruner
    keys: ClassVar[frozenset[str]] = frozenset()  # optional rule keys that it uses
    removes_channels: ClassVar[bool] = False  # a sparsity counts whole channels
    only_watches: ClassVar[bool] = True  # it does not change the training, so it may start early

    def __init__(self, model: Any, pruner: Any) -> None:
        self.model = model
        self.pruner = pruner

    def calc_mask(
        self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Any] | None:
        """Return ``{'weight_mask': ..., 'bias_mask': ...}`` for one layer, or None for no change."""
        raise NotImplementedError(f"{type(self).__name__} must override calc_mask().")

    def calc_masks(self, targets: Targets) -> Answers:
        """Return the masks of several layers: ``(wrapper, sparsity)`` in, ``(wrapper, masks)`` out.

        Override it if layers must be considered together.
        """
        for wrapper, sparsity in targets:
            index = wrapper.compressor.get_modules_wrapper().index(wrapper)
            yield wrapper, self.calc_mask(sparsity=sparsity, wrapper=wrapper, wrapper_idx=index)  # type: ignore[arg-type]

    def is_met(self, wrapper: Any, sparsity: float) -> bool:
        """Whether a layer already has the zeros that a sparsity requests."""
        mask = wrapper.weight_mask
        xp = namespace(mask)
        zeros = xp.size(mask) - xp.count_nonzero(mask)
        return bool(prune_count(xp.size(mask), sparsity) <= zeros)

    # -- for criteria that observe the training ----------------------------------------------------

    def is_ready(self) -> bool:
        """Whether the criterion has observed enough to score."""
        return True

    def what_is_missing(self) -> str:
        """Return the data that the criterion still has to observe before it can score, or an empty string."""
        return "" if self.is_ready() else "its criterion has not seen enough training steps"

    def check_progress(self) -> None:
        """Raise if the criterion will never have observed enough; a schedule calls it in each epoch."""

    def start_over(self) -> None:
        """Discard the observations; a schedule calls it after each update of the masks."""

    def start(self) -> None:
        """Start observing the model; called when a pruner gets an optimizer, and by ``compress()``."""

    def stop(self) -> None:
        """Stop observing; called by ``strip()``, and when a one-shot pruner has its masks."""

    def before_step(self) -> None:
        """Read or change gradients before an optimizer step uses them.

        Called once per step, or after each evaluation of the closure of ``optimizer.step(closure)``.
        """

    # -- before there are wrappers -----------------------------------------------------------------

    @classmethod
    def find_problems(cls, selection: Selection) -> list[Problem]:
        """Return the problems of a selection that are specific to the criterion."""
        return []

    @classmethod
    def lay_out(cls, pruner: Any, selection: Selection) -> Any:
        """Return which parameters the pruner has to mask together, or None if each layer is separate."""
        return None
