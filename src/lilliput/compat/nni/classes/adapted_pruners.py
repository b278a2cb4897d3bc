"""Pruners behind NNI's paths: the first stack, and the second, whose ``compress()`` returns the masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lilliput.compat.nni.classes.stacks import Adapted
from lilliput.compat.nni.classes.target_masks import target_masker
from lilliput.compat.nni.classes.wrappers import SeenPrunerWrapper
from lilliput.compat.nni.config.rules import in_total
from lilliput.compat.nni.config.target_rules import Target, split_rules
from lilliput.compat.nni.tools.exporting import PrunerFiles
from lilliput.errors import StageError
from lilliput.frameworks.ports.files import PlainFiles
from lilliput.ops.channels import channel_rows
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.pruning.scheduled import ScheduledPruner
from lilliput.torch import Pruner


class AdaptedPruner(Adapted, PrunerFiles, Pruner):
    """A pruner behind NNI's paths."""

    _wrapper_type = SeenPrunerWrapper
    targets_by_rule: tuple[Target | None, ...] = ()  # settings that current rules cannot express

    def follow_targets(self, targets: Sequence[Target | None]) -> None:
        """Make the criterion follow NNI's rules; see :mod:`target_masks`."""
        pruner: Any = self
        self.targets_by_rule = tuple(targets)
        pruner.masker_type = target_masker(pruner.masker_type)

    def target_of(self, wrapper: Any) -> Target:
        """Return the target of v3's rule for a layer."""
        taken = {d.layer.name: d.rule for d in self.selection.decisions if d.is_chosen}
        found = self.targets_by_rule[taken[wrapper.name] or 0]
        return Target(ratio=0.0) if found is None else found

    def _ranked_globally(self, rules: Any) -> Any:
        """As in :meth:`Adapted._ranked_globally`, over all weights, by unscaled scores."""
        masker_type = getattr(self, "masker_type", None)
        if getattr(masker_type, "scores_compare", True):
            return in_total(rules)
        rules, targets = split_rules(in_total(rules), type(self).__name__, always=True)
        self.follow_targets(targets)
        return rules

    def get_masks(self) -> dict[str, dict[str, Any]]:
        """As in :meth:`Adapted.get_masks`; raise while the masks are missing."""
        self._check_computed("its masks")
        return super().get_masks()

    def _check_computed(self, what: str) -> None:
        pruner: Any = self
        if not self._has_compressed or not self._is_waiting():
            return
        raise StageError(
            f"{type(self).__name__}: {what} would contain only ones, because masks were never calculated: "
            f"{pruner.masker.what_is_missing()}. Train further first."
        )

    def _is_waiting(self) -> bool:
        """Whether the criterion has to see more data before it can score."""
        pruner: Any = self
        if isinstance(self, ScheduledPruner):
            layers = self.get_modules_wrapper()
            return any(self.target_sparsity(w, self.now_epoch) > 0 for w in layers) and (
                not pruner.masker.is_ready() and all(bool(w.weight_mask.all()) for w in layers)
            )
        return isinstance(self, OneShotPruner) and bool(self._missing())

    def _write_files(self, files: PlainFiles) -> None:
        """As in :class:`PrunerFiles`; raise while the masks are missing."""
        self._check_computed("the file of masks")
        super()._write_files(files)


class Wrappers(list[Any]):
    """Wrappers as a list that also supports access by name, like the dict of v2's second stack."""

    def __getitem__(self, key: Any) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys() if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """Return the names of the layers."""
        return [wrapper.name for wrapper in self]

    def values(self) -> list[Any]:
        """Return the wrappers."""
        return list(self)

    def items(self) -> list[tuple[str, Any]]:
        """Return pairs of name and wrapper."""
        return [(wrapper.name, wrapper) for wrapper in self]


class SecondStackPruner(AdaptedPruner):
    """A pruner of v2's second stack or of v3: ``compress()`` returns the model and its masks."""

    def _check_masks(self, wrapper: Any, answer: Any) -> dict[str, Any]:
        """Also mask the bias where all of its weights are removed."""
        masks = super()._check_masks(wrapper, answer)
        layer, mask = wrapper.layer_info, masks.get("weight_mask")
        bias = getattr(wrapper.module, layer.owners[0].bias_name or "", None)
        if mask is not None and "bias_mask" not in masks and isinstance(bias, torch.Tensor):
            rows = channel_rows(mask, layer.out_axis, layer.out_groups).amax(1)
            if rows.shape == bias.shape and len(layer.owners) == 1:
                masks["bias_mask"] = self._backend.to_flags(rows)
        return masks

    def compress(self, *args: Any, **kwargs: Any) -> Any:
        """Compress the model and return it with its masks."""
        return super().compress(*args, **kwargs), self.get_masks()

    def get_modules_wrapper(self) -> Wrappers:
        """Return the wrappers; ``['conv1']`` and ``items()`` work as well."""
        return Wrappers(super().get_modules_wrapper())

    def unwrap_model(self) -> Any:
        """Turn the model into a plain one; pruned weights are zeros."""
        self._unwrap_model()
        return self.bound_model

    def wrap_model(self) -> Any:
        """Apply the masks again."""
        self._wrap_model()
        return self.bound_model

    def get_best_result(self) -> tuple[Any, ...]:
        """Return ``(task, model, masks, score, config_list)`` of an iterative pruner's last task."""
        return self.iterations, self.bound_model, self.get_masks(), None, self.config_list
