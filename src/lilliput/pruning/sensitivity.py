"""SensitivityPruner: remove the weights that are small relative to their layer.

Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015: the threshold
of a layer is a quality parameter q times the standard deviation of its weights::

    mask = |w| >= q * std(w)

A layer of normally distributed weights loses 38 % at q = 0.5, 68 % at 1.0, 87 % at 1.5. Choose q per
layer from a sensitivity scan (:class:`~lilliput.pruning.sensitivity_analysis.SensitivityAnalysis`): the
first layers are the most sensitive and get the smallest q.

>>> import torch
>>> model = torch.nn.Linear(4, 1)
>>> model.weight.data = torch.tensor([[4.0, -0.5, 2.0, -4.0]])
>>> SensitivityPruner(model, [{"quality": 0.5}]).compress().weight  # std is 2.97
Parameter containing:
tensor([[ 4.,  0.,  2., -4.]], requires_grad=True)

With an ``evaluator``, the class is another pruner of the same name (NNI 1.8 to 2.10), which finds the
sparsity of each layer by itself; see :mod:`lilliput.pruning.sensitivity_rounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from lilliput.config.spec import Rule
from lilliput.core.masker import Answers, Targets
from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.registry import register_pruner

Quality = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class SensitivityRule(Rule):
    """The threshold of a weight, in standard deviations of its layer's weights."""

    quality: Quality | None = Field(
        None, description="Weights below this many standard deviations are removed."
    )
    sparsity: Quality | None = Field(None, description="The 2019 name of 'quality'.")

    @model_validator(mode="after")
    def _check_quality(self) -> SensitivityRule:
        given = [x for x in (self.quality, self.sparsity) if x is not None]
        if not self.exclude and len(given) != 1:
            raise ValueError(
                "expected 'quality' (or 'sparsity', its 2019 name), "
                f"received {'both' if given else 'neither'}."
            )
        return self

    def settings(self) -> dict[str, Any]:
        """As in :meth:`Rule.settings`, with the threshold under ``quality``."""
        settings = super().settings()
        if "sparsity" in settings:
            settings["quality"] = settings.pop("sparsity")
        return settings


def keep_above_deviation(weight: Tensor, quality: float) -> Tensor:
    """Return where ``|w| >= quality * std(w)``, with the population standard deviation.

    Examples
    --------
    >>> import torch
    >>> keep_above_deviation(torch.tensor([3.0, -1.0, 1.0, -3.0]), 0.5)
    tensor([ True, False, False,  True])
    """
    xp = namespace(weight)
    wide = xp.widen(weight)
    distance = wide - xp.mean(wide)
    deviation = xp.mean(distance * distance) ** 0.5
    return xp.abs(wide) >= quality * deviation


@register_pruner("sensitivity")
class SensitivityPruner(Pruner):
    """Prune the weights below a multiple of their layer's standard deviation.

    The threshold is computed at ``compress()`` and again at each ``update_epoch(epoch)``, from the
    layer's current weights including zeros; pruned weights stay pruned. Because zeros are
    included, pruning does not raise the threshold of weights centred at zero, so nothing more is
    removed without training.

    With a callable ``evaluator`` instead of the optimizer, this is
    :class:`~lilliput.pruning.sensitivity_rounds.IterativeSensitivityPruner` and takes its parameters.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``quality`` (or ``sparsity``, its
        name in 2019): the threshold in standard deviations, 0 to 10.
    """

    paper = "Han et al. 2015, Learning both weights and connections"

    rule: ClassVar[type[Rule]] = SensitivityRule
    exact_sparsity = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the pruner that the arguments belong to: only one of the two has an evaluator."""
        if cls is SensitivityPruner and (
            callable((*args, *[None] * 3)[2]) or "evaluator" in kwargs
        ):
            from lilliput.pruning.sensitivity_rounds import IterativeSensitivityPruner

            return IterativeSensitivityPruner(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, model: Any = None, config_list: Any = None, optimizer: Any = None) -> None:
        super().__init__(model, config_list, optimizer)
        self.set_wrappers_attribute("is_due", True)

    def update_epoch(self, epoch: int) -> None:
        """Recompute the thresholds and update the masks."""
        for wrapper in self.get_modules_wrapper():
            wrapper.is_due = True

    def targets(self) -> Targets:
        """Return the layers without a mask for this epoch."""
        return [(w, None) for w in self.get_modules_wrapper() if w.is_due]

    def calc_masks(self, targets: Targets) -> Answers:
        """Return masks computed from the thresholds of the layers."""
        return [(wrapper, self._mask_of(wrapper)) for wrapper, _ in targets]

    def _mask_of(self, wrapper: Any) -> dict[str, Tensor]:
        mask, quality = wrapper.weight_mask, wrapper.config["quality"]
        weight = wrapper.weight * mask
        xp = namespace(weight)
        if xp.any(xp.isnan(weight)):
            raise AlgorithmError(
                f"layer {wrapper.name!r} has NaN among its weights, so no threshold can be computed; check "
                "the training."
            )
        keep = xp.to_float(keep_above_deviation(weight, quality), like=mask) * mask
        if not xp.count_nonzero(keep):
            raise AlgorithmError(
                f"layer {wrapper.name!r}: quality {quality:g} removes all of its weights; choose a "
                "smaller one (1.0 or less never does), or exclude the layer."
            )
        return {"weight_mask": keep}

    def _is_due(self) -> bool:
        return any(wrapper.is_due for wrapper in self.get_modules_wrapper())

    def _mark_done(self, wrappers: Sequence[Any]) -> None:
        for wrapper in wrappers:
            wrapper.is_due = False
