"""SecondOrderPruner: remove single weights and let those that stay make up for them, without training.

To second order, what pruning a layer costs is the change of its output, ``‖X W - Y‖²``, where ``Y`` is what
the original returns there and ``X`` what the layer reads once the layers before it are pruned. Of all
weights ``W`` with the zeros that are asked for, the best ones are looked for: which to keep by alternating
between the fit and the pattern (see :mod:`lilliput.ops.surgery`), then the values by least squares. Layers
are pruned in the order in which they run, so each also makes up for what the ones before it have lost.
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
    """Say which weights a least-squares fit keeps; LAMP shares a total sparsity among layers."""

    default_types = frozenset({"Conv1d", "Conv2d", "Conv3d", "Linear"})

    def __init__(self, model: Any, pruner: Any) -> None:
        super().__init__(model, pruner)
        self.masks: dict[str, Tensor] = {}  # by layer, once batches were seen

    @classmethod
    def lay_out(cls, pruner: Any, selection: Selection) -> Any:
        """Refuse pruners that would ask for masks again and again."""
        if not isinstance(pruner, SecondOrderPruner):
            raise ConfigError(
                f"{type(pruner).__name__} ranks weights repeatedly, but {cls.__name__} prunes once, based on "
                "calibrate(); use 'level' there."
            )
        return super().lay_out(pruner, selection)

    def keep(self, score: Tensor, sparsity: float, wrapper: Any) -> Tensor:
        """Return the mask that keeps what has the largest scores, in the pattern of the rule."""
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
        """Return the mask that was found for a layer."""
        return {"weight_mask": self.masks[wrapper.name]}

    def is_ready(self) -> bool:
        """Whether batches were seen."""
        return bool(self.masks)

    def what_is_missing(self) -> str:
        """Return that batches are to be shown."""
        return "" if self.is_ready() else "calibrate(batches) has not been called"


@register_pruner("second_order", "obs")
class SecondOrderPruner(OneShotPruner):
    """Prune weights, patterns or blocks in one shot, and refit the others by least squares.

    Call :meth:`calibrate` with a few hundred examples without labels, before or after ``compress()``. It
    changes the weights that stay, biases, and the running means of batch norms after layers without one.
    Layers that it cannot fit (tied weights, recurrent ones, those called in several places) are
    pruned by magnitude and listed in ``result.left``.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`. Rules hold ``sparsity`` (per layer), optionally
        with ``granularity``, or ``total_sparsity``, which LAMP scores share among the rule's layers.
    ridge : float
        The price of moving a weight, relative to the mean energy of its layer's inputs; it is raised
        where a layer sees few examples.

    Attributes
    ----------
    result : Reconstruction
        The error of each layer, pruned by magnitude and as it is now; ``print`` it.
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

    def calibrate(self, batches: Iterable[Any], *, progress: bool = False) -> None:
        """Find the masks and the weights that go with them; the model is changed by ``compress()``.

        After ``compress()`` it is changed at once. Masks that are there already stay.

        Parameters
        ----------
        batches : iterable
            A data loader or a list; a tensor or dict is what the model is called with, and of a tuple
            ``(inputs, targets)`` the inputs. Each process of a distributed run brings its own.
        progress : bool
            Whether to show how far it has come.
        """
        if self._wrappers is None:
            raise StageError(
                "calibrate() was called before a model was bound; call compress() first."
            )
        wrappers = [w for w in self.get_modules_wrapper() if not w.if_calculated]
        for wrapper in wrappers:
            wrapper.layer_sparsity = None  # by the weights as they are now
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
        """As in :meth:`Pruner.update_mask`; the fitted weights come along with the masks."""
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
