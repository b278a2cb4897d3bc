"""The quantized weights of a model, each computed once for all runs of an export."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lilliput.config.layer import QuantType
from lilliput.frameworks.exporting.simulation import Key, as_simulated, key_of
from lilliput.frameworks.wrapping import Marker


class RoundedWeights:
    """The quantized weights of a model that does not change, each computed once."""

    def __init__(self) -> None:
        self._held: dict[Key, tuple[Tensor, int, tuple[Tensor, ...]]] = {}

    def __call__(self, wrapper: Any, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return a weight rounded by its quantizer; weights computed by a pruner or torch are not cached."""
        (raw,) = tensors
        key = key_of(wrapper, QuantType.WEIGHT)
        version = -1 if raw.is_inference() else raw._version
        before, known, results = self._held.get(key, (None, -1, ()))
        if before is not raw or known != version:
            results = as_simulated(wrapper, QuantType.WEIGHT, tensors)
            if version >= 0:
                self._held[key] = raw, version, results
        return results

    def marker(self, others: Marker) -> Marker:
        """Return a marker that does so, and calls ``others`` for activations."""

        def mark(
            wrapper: Any, quant_type: QuantType, tensors: tuple[Tensor, ...]
        ) -> tuple[Tensor, ...]:
            if quant_type is QuantType.WEIGHT:
                return self(wrapper, tensors)
            return others(wrapper, quant_type, tensors)

        return mark

    def clear(self) -> None:
        """Clear the cache."""
        self._held.clear()
