"""A pruner that applies masks chosen by another pruner."""

from __future__ import annotations

from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.core.masker import Answers, Targets
from lilliput.core.pruner import Pruner
from lilliput.ops.namespace import namespace
from lilliput.pruning.sensitivity_goals import removed_from
from lilliput.pruning.sensitivity_probe import Masks, Probe, masks_of


class PlannedPruner(Pruner):
    """Wrap the layers of a probe, and mask them as given to :meth:`put_in_force`.

    Parameters
    ----------
    probe : Probe
        The pruner that reads the config list and chooses masks.
    config_list : list of dict
        The config list of the probe.
    """

    exact_sparsity = False

    def __init__(self, probe: Probe, config_list: Any) -> None:
        self.probe = probe
        self._planned: Masks = {}
        # The probe has validated the config list; here each of its layers has its own rule.
        super().__init__(probe.model, [_own_rule(layer) for layer in probe.selection.chosen])
        self.config_list, self._selection = config_list, probe.selection

    @property
    def layout(self) -> Any:
        """The layout of the channels, or None if they were not traced."""
        return self.probe.layout

    @property
    def removes_channels(self) -> bool:
        """Whether whole channels are removed instead of single weights."""
        return self.probe.by_channel

    def _companion_layers(self, selection: Selection) -> list[LayerInfo]:
        """Return the parameters that are masked along with the selected layers."""
        return list(self.probe.companions)

    def calc_masks(self, targets: Targets) -> Answers:
        """Return the planned masks, including those of the companions."""
        return [(wrapper, self._planned.get(wrapper.name)) for wrapper in self._every_wrapper()]

    def put_in_force(self, masks: Masks) -> None:
        """Mask the layers and their companions, all or none."""
        self._planned = masks
        try:
            self.update_mask()
        finally:
            self._planned = {}

    def forget_masks(self) -> None:
        """Reset masks to ones, after :meth:`strip`."""
        held = masks_of(self)
        for wrapper in self._every_wrapper():
            masks = held[wrapper.name].items()
            wrapper.set_masks({key: namespace(mask).ones_like(mask) for key, mask in masks})

    def removed(self) -> dict[str, int]:
        """Return how many weights each layer has lost."""
        return {
            wrapper.name: removed_from(
                wrapper.layer_info, wrapper.weight_mask, self.removes_channels
            )
            for wrapper in self.get_modules_wrapper()
        }

    def _is_due(self) -> bool:
        return bool(self._planned)


def _own_rule(layer: LayerInfo) -> dict[str, Any]:
    sparsity = layer.config.get("sparsity", layer.config.get("total_sparsity"))
    return {"op_names": [layer.name], "sparsity": sparsity}
