"""Algorithms of NNI that are still to come: they can be imported, and say on use when they come."""

from __future__ import annotations

from functools import cache
from typing import Any

from lilliput import __version__
from lilliput.errors import StageError

_TRAINING, _SEARCH = "0.4", "0.5"

# name: the release that brings it, and what to take until then
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
    """Return a class that refuses to be used, None for a name that is not to come.

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
        """Refuse, as the constructor does."""
        raise StageError(explain(cls.__name__))


def explain(name: str) -> str:
    """Say which release brings a name of NNI, and what to take until then."""
    release, instead = LATER.get(name, ("a later release", ""))
    return f"{name} comes with Lilliput {release}; this is {__version__}. Until then: {instead}"
