"""What the engine asks of a framework: layers and their masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo
from lilliput.errors import StageError


class Layers(ABC):
    """Find the layers of a model, and put wrappers on them."""

    name: ClassVar[str]

    @abstractmethod
    def layers(self, model: Any) -> list[LayerInfo]:
        """Return every layer of the model that could be compressed, in the model's order."""

    @abstractmethod
    def parts(self, model: Any) -> list[tuple[str, Any]]:
        """Return the layers and parameters of a model by name, which :meth:`layers` is made from."""

    @abstractmethod
    def parameters(self, model: Any) -> dict[str, LayerInfo]:
        """Return each parameter under all its full names, as a layer that can be wrapped."""

    @abstractmethod
    def is_known_type(self, name: str) -> bool:
        """Whether the framework has a layer class of that name."""

    @abstractmethod
    def quantizers_in(self, model: Any) -> list[Any]:
        """Return the wrappers of quantizers that are at work in a model, and in no copy of it."""

    @abstractmethod
    def check_overlaps(self, layers: Sequence[LayerInfo]) -> None:
        """Raise if two weights share memory without being one parameter."""

    def check_unchanged(
        self,
        model: Any,
        wrappers: Sequence[Any],
        parts: Sequence[tuple[str, Any]],
        find_layers: Callable[[], Iterable[LayerInfo]],
    ) -> None:
        """Raise if the model's layers are no longer those the wrappers were made for.

        The layers are looked up again only if the parts of the model are not what they were.
        """
        now = self.parts(model)
        if len(now) == len(parts) and all(
            name == known and part is other
            for (name, part), (known, other) in zip(now, parts, strict=True)
        ):
            return
        layers = {layer.name: layer for layer in find_layers()}
        parameters = self.parameters(model)
        for wrapper in wrappers:
            current = parameters if wrapper.layer_info.is_parameter else layers
            found = current.get(wrapper.name)
            owners = [] if found is None else [owner.module for owner in found.owners]
            if owners != [owner.module for owner in wrapper.layer_info.owners]:
                raise StageError(
                    f"layer {wrapper.name!r} was replaced, or its weight tied, after the compressor "
                    "was made; make the compressor when the model is complete."
                )

    @abstractmethod
    def wrap(self, kind: str, layer: LayerInfo, compressor: Any) -> Any:
        """Return a new wrapper (``kind`` is 'pruner' or 'quantizer'); the model stays untouched."""

    @abstractmethod
    def attach(self, wrapper: Any) -> None:
        """Make the layer compute with what the wrapper says."""

    @abstractmethod
    def detach(self, wrapper: Any) -> None:
        """Undo :meth:`attach` exactly."""

    def factoring(self) -> Any:
        """Return what puts two layers in the place of one; see ``frameworks/torch/factor.py``."""
        raise NotImplementedError(f"{self.name} does not replace layers.")

    def reshard(self, model: Any) -> None:  # noqa: B027
        """Bring the raw weights into the place where the optimizer finds them."""

    def announce_buffers(self, model: Any) -> None:  # noqa: B027
        """Tell what holds the model that its buffers have come or gone."""


class Masks(ABC):
    """Hold masks, and keep pruned weights at zero."""

    @abstractmethod
    def to_mask(self, keep: Any, wrapper: Any) -> Any:
        """Return a NumPy array of booleans as a tensor on the device of a wrapper's weight."""

    def to_flags(self, mask: Any) -> Any:
        """Return a mask that passed :meth:`check_mask` as booleans, a copy."""
        return mask != 0

    @abstractmethod
    def check_mask(self, wrapper: Any, key: str, mask: Any) -> str | None:
        """Return what is wrong with a mask for this wrapper, or None."""

    @abstractmethod
    def apply_masks(self, wrappers: Sequence[Any], optimizer: Any = None) -> None:
        """Zero the pruned weights, and the optimizer's memory of them, in place."""

    @abstractmethod
    def harden(self, wrappers: Sequence[Any], optimizer: Any = None) -> None:
        """Write what soft layers compute with into their raw weights, and mask these from then on."""

    @abstractmethod
    def hold_masks(self, wrappers: Sequence[Any]) -> None:
        """Put pruned weights that an optimizer step has moved back to zero, in place."""

    @abstractmethod
    def write_zeros(self, wrappers: Sequence[Any]) -> None:
        """Write the pruned zeros into the raw weights, or raise and change nothing."""

    @abstractmethod
    def masked_weight(self, wrapper: Any) -> Any:
        """Return a layer's raw weight with its masks applied, without gradient."""

    def narrow_norms(self, wrappers: Sequence[Any]) -> None:
        """Make norm layers take their statistics over kept channels; called after masks changed."""
        pruner = wrappers[0].compressor if wrappers else None
        layout = getattr(pruner, "layout", None)
        if layout is not None and layout.is_traced:
            self.narrow_to_masks(pruner)

    @abstractmethod
    def narrow_to_masks(self, pruner: Any) -> None:
        """Let norms see the channels that the masks of a structured pruner keep, and no others."""

    def narrow_norms_again(self, model: Any) -> None:  # noqa: B027
        """Do so for the pruners that are still at work on a model, after one has left."""

    def widen_norms(self, model: Any) -> list[str]:
        """Undo :meth:`narrow_norms`, and return which layers this concerned."""
        return []
