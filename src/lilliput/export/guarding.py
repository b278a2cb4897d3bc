"""Apply the saturation guard to all quantizers on a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from lilliput.backends.torch.wrapper import QuantizerModuleWrapper
from lilliput.export.saturation import Guarded, guard
from lilliput.speedup.capture import Inputs, as_inputs


def guard_model(model: nn.Module, inputs: Inputs, batches: list[Any] | None) -> list[Guarded]:
    """Keep the layers of a model from saturating on data like these; return which could."""
    wrappers = [m for m in model.modules() if isinstance(m, QuantizerModuleWrapper)]
    quantizers = {id(w.compressor): w.compressor for w in wrappers if w.compressor is not None}
    found: list[Guarded] = []
    for quantizer in quantizers.values():
        kept = getattr(quantizer, "sample_batches", ()) if batches is None else batches
        data = [inputs, *(_like(batch, inputs) for batch in kept)]
        found += guard(quantizer, data, lambda model, call: model(*call[0], **call[1]))
    return found


def _like(batch: Any, inputs: Inputs) -> Inputs:
    """Return a batch as inputs; of inputs with labels, the inputs."""
    args, kwargs = as_inputs(batch)
    count = len(inputs[0])
    return (args[:count], kwargs) if count and not kwargs else (args, kwargs)
