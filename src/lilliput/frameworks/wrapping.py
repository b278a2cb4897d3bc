"""What the wrappers of all frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar

from lilliput.config.layer import QuantType

Marker = Callable[[Any, QuantType, tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Marking:
    """One marker at work."""

    marker: Marker


class Markings(tuple[Marking, ...]):
    """The markers at work on a wrapper; copies of the wrapper are not marked."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Markings:
        return Markings()

    def __reduce__(self) -> Any:
        return Markings, ()


_in_context: ContextVar[tuple[Marking, ...]] = ContextVar("lilliput_markings", default=())
_lock = Lock()


@contextmanager
def marking(marker: Marker, wrappers: Iterable[Any]) -> Iterator[None]:
    """Call ``marker(wrapper, quant_type, tensors)`` wherever a quantizer would have been called.

    This is how an exporter learns where in the graph quantization happens. It concerns these wrappers
    and this thread only: other models, copies of this one and other threads quantize as ever.
    """
    entry, marked = Marking(marker), list(wrappers)
    with _lock:
        for wrapper in marked:
            wrapper.__dict__["_markings"] = Markings((*wrapper._markings, entry))
    token = _in_context.set((*_in_context.get(), entry))
    try:
        yield
    finally:
        _in_context.reset(token)
        with _lock:
            for wrapper in marked:
                left = [x for x in wrapper._markings if x is not entry]
                wrapper.__dict__["_markings"] = Markings(left)


def step_aside(wrapper: Any, quant_type: QuantType, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Let tensors pass as they are; a marker under which a model computes in float."""
    return tensors


def marker_of(wrapper: Any) -> Marker | None:
    """Return what this thread calls in place of a quantizer that is marked, None if itself."""
    here = _in_context.get()
    # A replica of DataParallel runs in a thread of its own on behalf of the one that is marked.
    is_replica = getattr(wrapper, "_is_replica", False)
    found = [x for x in wrapper._markings if is_replica or x in here]
    return found[-1].marker if found else None


class OwnAttributes:
    """The plain attributes of a wrapper: those of the engine, and those that an algorithm set."""

    _fixed: frozenset[str]
    optional_tensors: ClassVar[tuple[str, ...]] = ()  # those that a layer need not have
    _markings: Markings = Markings()
    _clip: tuple[float | None, float | None] | None = None  # of an output, before it is quantized

    def __repr__(self) -> str:
        layer = getattr(self, "layer_info", None)
        return f"{type(self).__name__}({'' if layer is None else layer})"

    def attributes(self) -> dict[str, Any]:
        """Return the plain attributes that an algorithm set."""
        own = self.__dict__.keys() - self._fixed
        return {name: self.__dict__[name] for name in sorted(own) if not name.startswith("_")}

    def reset_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Restore the plain attributes of an earlier moment."""
        for name in self.attributes().keys() - attributes.keys():
            delattr(self, name)
        self.__dict__.update(attributes)

    def keeps_raw(self, role: str = "weight") -> bool:
        """Whether a pruner computes the layer's weight, and leaves the raw one as it is trained.

        So as long as the algorithm has set ``is_soft`` on this wrapper.
        """
        return role == "weight" and bool(self.__dict__.get("is_soft", False))

    def is_reserved(self, name: str) -> bool:
        """Whether a name belongs to the engine."""
        return name.startswith("_") or name in self._fixed or hasattr(type(self), name)

    def _fix(self) -> None:
        """Record which attributes are the engine's; those that come later are the algorithm's."""
        self.__dict__["_fixed"] = frozenset({*self.__dict__, "_fixed"})
