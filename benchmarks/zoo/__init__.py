"""Many architectures, small and without weights: the ground that speedup has to cover.

``ZOO[name]`` has ``build()``, which returns the model in eval mode, and ``inputs()``.
"""

from zoo import (
    attention,
    convolutions,
    dense_prediction,
    hf_text,
    hf_vision,
    mixers,
    mobile,
    sequences,
)
from zoo.registry import ZOO, Entry

__all__ = [
    "ZOO",
    "Entry",
    "attention",
    "convolutions",
    "dense_prediction",
    "hf_text",
    "hf_vision",
    "mixers",
    "mobile",
    "sequences",
]
