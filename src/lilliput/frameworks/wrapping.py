"""The common part of wrappers of all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.errors import StageError

Marker = Callable[[Any, QuantType, tuple[Any, ...]], tuple[Any, ...]]
Masks = list[tuple[Any, bool]]  # each with whether its pruner needs the gradients of pruned entries


@dataclass(frozen=True, eq=False)
class Marking:
    """One active marker."""

    marker: Marker


class Markings(tuple[Marking, ...]):
    """The active markers of a wrapper; copies of the wrapper are not marked."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Markings:
        return Markings()

    def __reduce__(self) -> Any:
        return Markings, ()


_in_context: ContextVar[tuple[Marking, ...]] = ContextVar("lilliput_markings", default=())
_lock = Lock()


@contextmanager
def marking(marker: Marker, wrappers: Iterable[Any]) -> Iterator[None]:
    """Call ``marker(wrapper, quant_type, tensors)`` wherever a quantizer would have been called.

    This is how an exporter learns where in the graph quantization happens. It affects these wrappers
    and this thread only: other models, copies of this one and other threads quantize as usual.
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
    """Return tensors unchanged; a marker with which a model computes in float."""
    return tensors


def marker_of(wrapper: Any) -> Marker | None:
    """Return the function that this thread calls instead of a marked quantizer, or None."""
    here = _in_context.get()
    # A replica of DataParallel runs in its own thread for the one that is marked.
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
        """Return the plain attributes set by an algorithm."""
        own = self.__dict__.keys() - self._fixed
        return {name: self.__dict__[name] for name in sorted(own) if not name.startswith("_")}

    def reset_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Restore earlier plain attributes."""
        for name in self.attributes().keys() - attributes.keys():
            delattr(self, name)
        self.__dict__.update(attributes)

    def tensors(self) -> dict[str, Any]:
        """Return the tensors of this wrapper."""
        raise NotImplementedError

    def find_faults(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
        """Return the entries of a snapshot that do not fit, by name."""
        faults = {
            key: "not an attribute of an algorithm" for key in values if self.is_reserved(key)
        }
        for key, held in self.tensors().items():
            saved = tensors.get(key)
            if saved is None:
                faults[key] = "missing"
            elif tuple(saved.shape) != tuple(held.shape):
                faults[key] = f"shape {list(saved.shape)}, expected {list(held.shape)}"
        return faults

    def keeps_raw(self, role: str = "weight") -> bool:
        """Whether a pruner computes the layer's weight, and the raw one is trained.

        True as long as the algorithm has set ``is_soft`` on this wrapper.
        """
        return role == "weight" and bool(self.__dict__.get("is_soft", False))

    def is_reserved(self, name: str) -> bool:
        """Whether a name belongs to the engine."""
        return name.startswith("_") or name in self._fixed or hasattr(type(self), name)

    def _fix(self) -> None:
        """Record which attributes belong to the engine; later ones belong to the algorithm."""
        self.__dict__["_fixed"] = frozenset({*self.__dict__, "_fixed"})


def find_mask_faults(
    tensors: Mapping[str, Any], bias: Any, is_binary: Callable[[Any], bool]
) -> dict[str, str]:
    """Return the problems of the masks of a snapshot, by name; they contain only zeros and ones."""
    faults = {}
    for key in ("weight_mask", "bias_mask"):
        if key in tensors and not is_binary(tensors[key]):
            faults[key] = "received values other than 0 and 1"
    mask = tensors.get("bias_mask")
    if mask is not None and bias is None:
        faults["bias_mask"] = "the layer has no bias"
    elif mask is not None and tuple(mask.shape) != tuple(bias.shape):
        shapes = list(mask.shape), list(bias.shape)
        faults["bias_mask"] = f"shape {shapes[0]}, the bias has {shapes[1]}"
    return faults


def check_rivals(wrapper: Any, others: Iterable[Any]) -> None:
    """Raise if a tensor is already quantized by another quantizer."""
    for other in others:
        both = set(other.roles) & set(wrapper.roles) if other.order == wrapper.order == 1 else set()
        if both and other.compressor is not wrapper.compressor:
            raise StageError(
                f"layer {wrapper.name!r}: its {min(both)} is already quantized by a "
                f"{type(other.compressor).__name__}; strip() that one first."
            )


class Quantizing(OwnAttributes):
    """The common part of quantizer wrappers on every framework, placed before their other base class."""

    order: ClassVar[int] = 1
    roles: tuple[str, ...]
    config: dict[str, Any]

    def __init__(self, layer: LayerInfo, compressor: Any) -> None:
        super().__init__(layer, compressor)  # type: ignore[call-arg]
        self.roles = tuple(compressor.targets_of(layer))
        self.config["quant_types"] = list(self.roles)
        self._fix()

    def quantize_inputs(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Quantize the inputs of the layer."""
        return self._run(QuantType.INPUT, tensors)

    def quantize_output(self, tensor: Any) -> Any:
        """Quantize the output of the layer."""
        return self._run(QuantType.OUTPUT, (tensor,))[0]

    def _run(self, quant_type: QuantType, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        raise NotImplementedError
