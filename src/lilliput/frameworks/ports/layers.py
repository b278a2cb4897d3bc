"""The framework interface of the engine: layers and their masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo
from lilliput.errors import StageError


class Layers(ABC):
    """Find the layers of a model, and attach wrappers to them."""

    name: ClassVar[str]

    @abstractmethod
    def layers(self, model: Any) -> list[LayerInfo]:
        """Return every layer of the model that can be compressed, in the model's order."""

    @abstractmethod
    def parts(self, model: Any) -> list[tuple[str, Any]]:
        """Return the layers and parameters of a model by name, from which :meth:`layers` is derived."""

    @abstractmethod
    def parameters(self, model: Any) -> dict[str, LayerInfo]:
        """Return each parameter under all its full names, as a layer that can be wrapped."""

    @abstractmethod
    def is_known_type(self, name: str) -> bool:
        """Whether the framework has a layer class of that name."""

    @abstractmethod
    def quantizers_in(self, model: Any) -> list[Any]:
        """Return the wrappers of quantizers attached to a model, but not to its copies."""

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
        """Raise if the model's layers are no longer those the wrappers were created for.

        The layers are looked up again only if the parts of the model have changed.
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
                    "was created; create the compressor when the model is complete."
                )

    @abstractmethod
    def wrap(self, kind: str, layer: LayerInfo, compressor: Any) -> Any:
        """Return a new wrapper (``kind`` is 'pruner' or 'quantizer'); the model is not changed."""

    @abstractmethod
    def attach(self, wrapper: Any) -> None:
        """Make the layer use the wrapper's compressed weights."""

    @abstractmethod
    def detach(self, wrapper: Any) -> None:
        """Undo :meth:`attach` exactly."""

    def factoring(self) -> Any:
        """Return the module that replaces one layer by two; see ``frameworks/torch/factor.py``."""
        raise NotImplementedError(f"{self.name} does not replace layers.")

    def reshard(self, model: Any) -> None:  # noqa: B027
        """Move the raw weights to where the optimizer finds them."""

    def announce_buffers(self, model: Any) -> None:  # noqa: B027
        """Notify the owners of the model that buffers were added or removed."""


class Masks(ABC):
    """Apply masks, and keep pruned weights at zero."""

    @abstractmethod
    def to_mask(self, keep: Any, wrapper: Any) -> Any:
        """Return a NumPy array of booleans as a tensor on the device of a wrapper's weight."""

    def to_flags(self, mask: Any) -> Any:
        """Return a mask that passed :meth:`check_mask` as booleans (a copy)."""
        return mask != 0

    @abstractmethod
    def check_mask(self, wrapper: Any, key: str, mask: Any) -> str | None:
        """Return the problem of a mask for this wrapper, or None."""

    @abstractmethod
    def apply_masks(self, wrappers: Sequence[Any], optimizer: Any = None) -> None:
        """Set pruned weights to zero and reset their optimizer state, in place."""

    @abstractmethod
    def harden(self, wrappers: Sequence[Any], optimizer: Any = None) -> None:
        """Write the computed weights of soft layers into their raw weights, and mask these from then on."""

    @abstractmethod
    def hold_masks(self, wrappers: Sequence[Any]) -> None:
        """Set pruned weights back to zero after an optimizer step has moved them, in place."""

    @abstractmethod
    def write_zeros(self, wrappers: Sequence[Any]) -> None:
        """Write the pruned zeros into the raw weights, or raise without changing anything."""

    @abstractmethod
    def masked_weight(self, wrapper: Any) -> Any:
        """Return a layer's raw weight with its masks applied, without gradient."""

    def narrow_norms(self, wrappers: Sequence[Any]) -> None:
        """Make norm layers compute their statistics over kept channels; called after masks change."""
        pruner = wrappers[0].compressor if wrappers else None
        layout = getattr(pruner, "layout", None)
        if layout is not None and layout.is_traced:
            self.narrow_to_masks(pruner)

    @abstractmethod
    def narrow_to_masks(self, pruner: Any) -> None:
        """Restrict norms to the channels that the masks of a structured pruner keep."""

    def narrow_norms_again(self, model: Any) -> None:  # noqa: B027
        """Repeat this for the remaining pruners of a model, after one was removed."""

    def widen_norms(self, model: Any) -> list[str]:
        """Undo :meth:`narrow_norms`, and return the affected layers."""
        return []
