"""Quantize large embeddings along with the layers that rules select.

If the layers of a network have 8 bits, an embedding in float would be most of the file: 47 of the 59 MB of a
MiniLM. So an embedding of more than 1 MiB that holds more than a tenth of a model's weights gets 8 bits,
with one scale per row, unless a rule selects or excludes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Decision, Selection

_LEAST_SHARE = 0.1  # of the weights of a model
_LEAST_WEIGHTS = 2**18  # 1 MiB in float
_ASKED = {"quant_types": ["weight"], "quant_bits": 8}


def take_embeddings(
    selection: Selection, targets_of: Callable[[LayerInfo], list[str]]
) -> Selection:
    """Return a selection that includes the embeddings that would dominate the file.

    Parameters
    ----------
    selection : Selection
        The layers selected by the rules.
    targets_of : callable
        Returns which tensors of a layer are quantized; embeddings are added only if weights are.
    """
    if not any("weight" in targets_of(layer) for layer in selection.chosen):
        return selection
    total = sum(prod(x.layer.shape) for x in selection.decisions if x.layer.shape)
    decisions = [_take(x, total) for x in selection.decisions]
    return replace(selection, decisions=tuple(decisions))


def _take(decision: Decision, total: int) -> Decision:
    layer = decision.layer
    if decision.rule is not None or not layer.shape or not all(map(_is_table, layer.owners)):
        return decision
    size = prod(layer.shape)
    if size <= _LEAST_WEIGHTS or size <= _LEAST_SHARE * total:
        return decision
    reason = f"an embedding with {size / total:.0%} of the weights"
    return Decision(replace(layer, config=dict(_ASKED)), None, default=reason)


def _is_table(owner: Any) -> bool:
    """Whether a module only looks up rows; a tied head, which multiplies by them, is left to the rules."""
    return any(cls.__name__ == "Embedding" for cls in type(owner.module).__mro__)
