"""What the wrappers of all frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from lilliput.config.layer import QuantType

Marker = Callable[[Any, QuantType, tuple[Any, ...]], tuple[Any, ...]]
_markers: list[Marker] = []


@contextmanager
def marking(marker: Marker) -> Iterator[None]:
    """Call ``marker(wrapper, quant_type, tensors)`` wherever a quantizer would have been called.

    This is how an exporter learns where in the graph quantization happens.
    """
    _markers.append(marker)
    try:
        yield
    finally:
        _markers.pop()


def marker() -> Marker | None:
    """Return what is to be called in place of quantizers, None if they are."""
    return _markers[-1] if _markers else None


class OwnAttributes:
    """The plain attributes of a wrapper: those of the engine, and those that an algorithm set."""

    _fixed: frozenset[str]
    optional_tensors: ClassVar[tuple[str, ...]] = ()  # those that a layer need not have

    def attributes(self) -> dict[str, Any]:
        """Return the plain attributes that an algorithm set."""
        own = self.__dict__.keys() - self._fixed
        return {name: self.__dict__[name] for name in sorted(own) if not name.startswith("_")}

    def reset_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Go back to the plain attributes of an earlier moment."""
        for name in self.attributes().keys() - attributes.keys():
            delattr(self, name)
        self.__dict__.update(attributes)

    def is_reserved(self, name: str) -> bool:
        """Whether a name belongs to the engine."""
        return name.startswith("_") or name in self._fixed or hasattr(type(self), name)

    def _fix(self) -> None:
        """Note which attributes are the engine's; those that come later are the algorithm's."""
        self.__dict__["_fixed"] = frozenset({*self.__dict__, "_fixed"})
