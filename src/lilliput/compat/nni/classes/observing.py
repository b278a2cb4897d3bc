"""v2's ``ObserverQuantizer``: calls of the model before ``compress()`` calibrate it."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_map

from lilliput.compat.nni.classes.stacks import AdaptedQuantizer
from lilliput.torch import PTQQuantizer


class ObservingQuantizer(AdaptedQuantizer, PTQQuantizer):
    """Record the calls of the model from construction on; ``compress()`` finds the ranges and quantizes.

    Activations are quantized at the layers themselves, as they were in NNI.
    """

    _hook: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.bound_model is not None:
            self._inputs: list[Any] = []
            self._hook = self.bound_model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Any, kwargs: Any) -> None:
        self._inputs.append(tree_map(_detached, (args, kwargs)))

    def compress(self, model: Any = None) -> Any:
        """Quantize the model, calibrated by the recorded calls."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        compressed = super().compress(model)
        seen, self._inputs = getattr(self, "_inputs", []), []
        if seen:
            self.calibrate(seen, lambda net, call: net(*call[0], **call[1]), progress=False)
        return compressed

    def _place_by(self, batch: Any, forward: Any) -> None:
        """Quantize activations at the layers that the rules select."""


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value
