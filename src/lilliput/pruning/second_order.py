"""SecondOrderPruner: remove single weights and refit the remaining ones to compensate, without training.

To second order, the cost of pruning a layer is the change of its output, ``‖X W - Y‖²``, where ``Y`` is
the output of the original layer and ``X`` the layer's input once the layers before it are pruned. The best
weights ``W`` with the requested zeros are found in two steps: which to keep, by alternating between the fit
and the pattern (see :mod:`lilliput.ops.surgery`), then their values, by least squares. Layers are pruned in
the order in which they run, so each also compensates for the errors of the layers before it.
Hassibi & Stork, "Optimal brain surgeon", 1993; Frantar & Alistarh, "Optimal brain compression", 2022; Meng
et al., "ALPS: improved optimization for highly sparse one-shot pruning", 2024.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
>>> x, before = torch.randn(256, 8), [model[0].weight.clone(), model[2].weight.clone()]
>>> pruner = SecondOrderPruner(model, [{"op_types": ["Linear"], "sparsity": 0.5}])
>>> pruner.calibrate([x])
>>> model = pruner.compress()
>>> int((model[0].weight == 0).sum()), bool((model[2].weight != before[1]).any())
(64, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lilliput.config.select import Selection
from lilliput.core.checks import checked_number
from lilliput.core.masker import Targets
from lilliput.errors import ConfigError, StageError
from lilliput.frameworks import part_for
from lilliput.ops.masks import prune_count, prune_smallest
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.granularity import prune_pattern
from lilliput.pruning.lamp import LAMPMasker
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.recovery.reconstruct import Reconstruction
from lilliput.registry import register_pruner


class SecondOrderMasker(LAMPMasker):
    """Keep the weights chosen by a least-squares fit; LAMP distributes a total sparsity among layers."""

    default_types = frozenset({"Conv1d", "Conv2d", "Conv3d", "Linear"})

    def __init__(self, model: Any, pruner: Any) -> None:
        super().__init__(model, pruner)
        self.masks: dict[str, Tensor] = {}  # by layer, after calibrate()

    @classmethod
    def lay_out(cls, pruner: Any, selection: Selection) -> Any:
        """Raise for pruners that request masks repeatedly."""
        if not isinstance(pruner, SecondOrderPruner):
            raise ConfigError(
                f"{type(pruner).__name__} ranks weights repeatedly, but {cls.__name__} prunes once, based on "
                "calibrate(); use 'level' there."
            )
        return super().lay_out(pruner, selection)

    def keep(self, score: Tensor, sparsity: float, wrapper: Any) -> Tensor:
        """Return the mask that keeps the largest scores, in the pattern of the rule."""
        granularity = wrapper.config.get("granularity")
        if granularity is not None:
            return prune_pattern(score, sparsity, granularity, wrapper.layer_info)
        return prune_smallest(score, prune_count(namespace(score).size(score), sparsity))

    def fallback(self, wrapper: Any, sparsity: float) -> Tensor:
        """Return the mask of a layer by magnitude alone."""
        return self.keep(self.rank(wrapper), sparsity, wrapper)

    def calc_mask(
        self, sparsity: float, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Tensor]:
        """Return the mask found for a layer."""
        return {"weight_mask": self.masks[wrapper.name]}

    def is_ready(self) -> bool:
        """Whether batches have been seen."""
        return bool(self.masks)

    def what_is_missing(self) -> str:
        """Return a message if calibrate() has not been called."""
        return "" if self.is_ready() else "calibrate(batches) has not been called"


@register_pruner("second_order", "obs")
class SecondOrderPruner(OneShotPruner):
    """Prune weights, patterns or blocks in one shot, and refit the others by least squares.

    Call :meth:`calibrate` with a few hundred unlabelled examples, before or after ``compress()``. It
    changes the remaining weights, biases, and the running means of batch norms after layers without a bias.
    Layers that it cannot fit (with tied weights, recurrent, or called in several places) are
    pruned by magnitude and listed in ``result.left``.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules have ``sparsity`` (per layer), optionally
        with ``granularity``, or ``total_sparsity``, distributed among the rule's layers by LAMP scores.
    ridge : float
        The penalty on changing a weight, relative to the mean energy of its layer's inputs; it is
        increased where a layer sees few examples.

    Attributes
    ----------
    result : Reconstruction
        The error of each layer, pruned by magnitude and as fitted; ``print`` shows a table.
    """

    paper = "Hassibi & Stork 1993, Optimal brain surgeon; Meng et al. 2024, ALPS"
    backends = ("torch",)

    masker_type = SecondOrderMasker
    result: Any = None
    _surgery: Any = None

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        *,
        ridge: float = 1e-3,
    ) -> None:
        self.ridge = checked_number("ridge", ridge, "a number above 0", lambda x: x > 0)
        super().__init__(model, config_list, optimizer)

    def calibrate(self, batches: Iterable[Any], *, progress: bool = True) -> None:
        """Find the masks and the fitted weights; ``compress()`` applies them to the model.

        After ``compress()``, they are applied immediately. Existing masks are kept.

        Parameters
        ----------
        batches : iterable
            A data loader or a list. The model is called with a tensor or dict, and with the inputs of a
            tuple ``(inputs, targets)``. Each process of a distributed run passes its own batches.
        progress : bool
            Whether to show a progress bar on a terminal.
        """
        if self._wrappers is None:
            raise StageError(
                "calibrate() was called before a model was bound; call compress() first."
            )
        wrappers = [w for w in self.get_modules_wrapper() if not w.if_calculated]
        for wrapper in wrappers:
            wrapper.layer_sparsity = None  # recomputed from the current weights
        due = [(wrapper, self._sparsity_of(wrapper)) for wrapper in wrappers]
        part = part_for(self.bound_model, "surgery")
        jobs = self._jobs(due, part.Task)
        surgery = part.Surgery(self.bound_model, batches, jobs, self.sum_over_processes)
        surgery.run(self.ridge, progress)
        self.result = Reconstruction(surgery.errors, surgery.left)
        self.masker.masks, self._surgery = surgery.masks, surgery
        if self.is_wrapped:
            self.update_mask()

    def update_mask(self) -> None:
        """As in :meth:`Pruner.update_mask`; the fitted weights are set along with the masks."""
        surgery = self._surgery
        if surgery is not None:
            surgery.check_unchanged()
        super().update_mask()
        if surgery is not None and self.is_wrapped:
            surgery.apply()
            self._surgery = None

    def _jobs(self, due: Targets, task: Any) -> dict[str, Any]:
        masker: Any = self.masker

        def keeping(wrapper: Any, sparsity: Any) -> Any:
            return lambda score: masker.keep(score, sparsity, wrapper)

        return {
            wrapper.name: task(
                wrapper.layer_info.tensor_names,
                keeping(wrapper, sparsity),
                masker.fallback(wrapper, sparsity),
                "it is not called as a layer" if wrapper.layer_info.is_bypassed else "",
            )
            for wrapper, sparsity in due
        }
