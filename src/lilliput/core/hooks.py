"""Call an author's method with the arguments that its signature requests.

Over the years the same hook was documented as ``quantize_weight(weight, config, **kwargs)``,
``(weight, wrapper, **kwargs)`` and ``(layer_info, weight)``, and likewise for ``calc_mask``. All of
them work: the parameter names determine the arguments. They are read once, when the compressor binds
a model, and never in the forward pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod

from lilliput.errors import AlgorithmError

# Parameter name -> getter of its value from the wrapper. Lambdas, because they are compiled.
_FROM_WRAPPER: dict[str, Callable[[Any], Any]] = {
    "wrapper": lambda wrapper: wrapper,
    "config": lambda wrapper: wrapper.config,
    "layer_info": lambda wrapper: wrapper.layer_info,
    "layer": lambda wrapper: wrapper.layer_info,
    "op": lambda wrapper: wrapper.module,
    "module": lambda wrapper: wrapper.module,
    "op_type": lambda wrapper: wrapper.type,
    "op_name": lambda wrapper: wrapper.name,
}


@dataclass(frozen=True)
class Call:
    """A method and the plan of how to call it.

    ``slots`` holds, per parameter, its keyword (None if positional) and the getter that reads its
    value from the wrapper; a None getter is the tensor itself.
    """

    method: Callable[..., Any]
    slots: tuple[tuple[str | None, Callable[[Any], Any] | None], ...]
    takes_all: bool
    index_name: str | None

    @property
    def wants_tensor(self) -> bool:
        """Whether the method takes the tensor, which may be expensive to compute."""
        return self.takes_all or any(getter is None for _, getter in self.slots)

    def __call__(self, wrapper: Any, *tensors: Any, index: int = 0) -> Any:
        """Call the method for one wrapper with the ``tensors`` that the engine provides."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for keyword, getter in self.slots:
            if getter is None:
                positional.append(tensors[0])
            elif keyword is None:
                positional.append(getter(wrapper))
            else:
                named[keyword] = getter(wrapper)
        if self.takes_all:
            positional.extend(tensors)
        if self.index_name:
            named[self.index_name] = index
        return self.method(*positional, **named)


def plan_call(method: Callable[..., Any]) -> Call:
    """Read a bound method's parameters and plan how to call it.

    Examples
    --------
    >>> def quantize_weight(layer_info, weight): ...
    >>> plan_call(quantize_weight).slots[1]
    (None, None)
    """
    slots: list[tuple[str | None, Callable[[Any], Any] | None]] = []
    takes_all, has_tensor, index_name = False, False, None
    for parameter in inspect.signature(method).parameters.values():
        name, kind = parameter.name, parameter.kind
        keyword = name if kind is parameter.KEYWORD_ONLY else None
        if kind is parameter.VAR_POSITIONAL:
            takes_all = True
        elif kind is parameter.VAR_KEYWORD:
            continue
        elif name == "wrapper_idx":
            index_name = name
        elif name in _FROM_WRAPPER:
            slots.append((keyword, _FROM_WRAPPER[name]))
        elif parameter.default is not parameter.empty:
            continue
        elif keyword is None and not has_tensor:
            has_tensor = True
            slots.append((None, None))
        else:
            known = ", ".join(_FROM_WRAPPER)
            raise AlgorithmError(
                f"{_title(method)} has a parameter {name!r} that the engine cannot provide; expected the "
                f"tensor first and then any of: {known}."
            )
    return Call(method, tuple(slots), takes_all, index_name)


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a bound method as long as its object is alive."""
    reference = WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    return call


def _title(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", repr(method))
