"""Planned algorithms of NNI: they can be imported, and raise on use with the planned release."""

from __future__ import annotations

from functools import cache
from typing import Any

from lilliput import __version__
from lilliput.errors import StageError

_TRAINING, _SEARCH = "0.4", "0.5"

# name: the planned release, and what to use until then
LATER = {
    "TransformerHeadPruner": (
        _TRAINING,
        "L1NormPruner or TaylorFOWeightPruner of lilliput.torch with example_inputs, which remove whole "
        "heads, and speedup(), which cuts them out.",
    ),
    "AutoCompressionExperiment": (_SEARCH, "compress() of lilliput.torch."),
    "CompressionExperiment": (_SEARCH, "compress() of lilliput.torch."),
}


@cache
def class_of(name: str) -> type | None:
    """Return a class that raises on use, or None for a name that is not planned.

    Examples
    --------
    >>> class_of("LevelPruner") is None, class_of("TransformerHeadPruner").__name__
    (True, 'TransformerHeadPruner')
    """
    if name not in LATER:
        return None
    text = explain(name)
    return type(name, (_Later,), {"__module__": __name__, "__doc__": text, "not_here": text})


class _Later:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise StageError(explain(type(self).__name__))

    @classmethod
    def from_compressor(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise, as the constructor does."""
        raise StageError(explain(cls.__name__))


def explain(name: str) -> str:
    """Return which release brings a name of NNI, and what to use until then."""
    release, instead = LATER.get(name, ("a later release", ""))
    return f"{name} comes with Lilliput {release}; this is {__version__}. Until then: {instead}"
