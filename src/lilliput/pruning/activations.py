"""Criteria that score channels by the activations of their layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lilliput.config.layer import LayerInfo
from lilliput.core.arguments import passes_on
from lilliput.core.checks import checked_choice
from lilliput.errors import AlgorithmError
from lilliput.ops.channels import channel_rows
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.channels import ChannelMasker, ChannelPruner
from lilliput.pruning.collecting import CollectingArguments, CollectingMasker, CollectingPruner

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ACTIVATIONS = ("relu", "gelu", "relu6")
_HIDDEN_TYPES = frozenset({"MultiheadAttention", "RNNBase", "RNNCellBase"})


class ActivationMasker(CollectingMasker, ChannelMasker):
    """Score channels by the outputs of their layer, after its ``activation``."""

    def __init__(
        self, model: Any, pruner: Any, training_batches: int = 20, activation: str = "relu"
    ) -> None:
        self.activation = checked_choice("activation", activation, _ACTIVATIONS)
        super().__init__(model, pruner, training_batches)
        self._collector: int | None = None

    def measure(self, activations: Tensor) -> Tensor:
        """Return the quantity to average, for activations with one row per channel."""
        raise NotImplementedError(f"{type(self).__name__} must override measure().")

    @classmethod
    def obstacle(cls, layer: LayerInfo) -> str:
        """Return why the activations of a layer's channels cannot be observed."""
        is_hidden = layer.is_bypassed or not layer.types.isdisjoint(_HIDDEN_TYPES)
        return "they are not visible in the output of a module" if is_hidden else ""

    def start(self) -> None:
        """Start observing the outputs of the layers."""
        if self._collector is None:
            self._collector = self.pruner.add_activation_collector(self._collect)

    def stop(self) -> None:
        """Stop observing."""
        if self._collector is not None:
            self.pruner.remove_activation_collector(self._collector)
            self._collector = None

    def _collect(self, wrapper: Any, input_: Any, output: Any) -> None:
        is_shown = self.pruner.sees_training and self.pruner.is_training()
        if wrapper.is_collected or not (self.is_calibrating or is_shown):
            return
        output = output[0] if isinstance(output, (tuple, list)) else output
        xp = namespace(output)
        layer = wrapper.layer_info
        rows = channel_rows(xp.widen(xp.detach(output)), layer.channel_axis)
        if xp.shape(rows)[0] != layer.out_channels:
            if len(layer.owners) > 1:
                return  # a tied output layer reads the channels that the embedding produces
            raise AlgorithmError(
                f"layer {wrapper.name!r} has {layer.out_channels} channels, which its output of shape "
                f"{tuple(xp.shape(output))} does not have; exclude it."
            )
        if not self.can_count(rows, wrapper.name):
            return
        if not self.pruner.is_activated(layer):
            rows = getattr(xp, self.activation)(rows)
        self.add(wrapper, xp.sum(self.measure(rows), axis=1), xp.shape(rows)[1])


class ActivationPruner(CollectingPruner, ChannelPruner):
    """Base class of pruners with a criterion on activations.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, training_batches, groups
        See :class:`~lilliput.pruning.collecting.CollectingPruner`.
    activation : str
        The function that follows the layers: ``'relu'`` (default), ``'gelu'`` or ``'relu6'``. It is not
        applied to the output of a layer with an activation of its own (``Dense(8, "relu")`` in Keras).
    """

    @passes_on(CollectingArguments, to=CollectingPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        activation: str = "relu",
        **others: Unpack[CollectingArguments],
    ) -> None:
        options = {"activation": activation}
        super().__init__(model, config_list, optimizer, example_inputs, options=options, **others)
