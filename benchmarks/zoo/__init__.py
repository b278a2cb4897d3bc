"""Many architectures, small and without weights: the ground that speedup has to cover.

``ZOO[name]`` has ``build()``, which returns the model in eval mode, and ``inputs()``. The models of
transformers, which take a while to import, are there after ``add_transformers()``.
"""

from importlib import import_module

from zoo import attention, convolutions, dense_prediction, mixers, mobile, sequences, shuffled
from zoo.registry import ZOO, Entry

__all__ = [
    "ZOO",
    "Entry",
    "add_transformers",
    "attention",
    "convolutions",
    "dense_prediction",
    "mixers",
    "mobile",
    "sequences",
    "shuffled",
]


def add_transformers() -> None:
    """Enter the models of the transformers library."""
    for name in ("hf_text", "hf_vision"):
        import_module(f"zoo.{name}")
