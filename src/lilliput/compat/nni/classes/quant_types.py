"""``QuantType`` with both spellings of its members: ``OUTPUT`` (2.x) and ``QUANT_OUTPUT`` (1.x)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lilliput.config import layer


class _Members(type):
    """Maps either name to the members of the current enum."""

    def __getattr__(cls, name: str) -> layer.QuantType:
        member = layer.QuantType.__members__.get(name.removeprefix("QUANT_"))
        if member is None:
            raise AttributeError(f"QuantType has no member {name!r}.")
        return member

    def __call__(cls, value: Any) -> layer.QuantType:
        return layer.QuantType(value)

    def __iter__(cls) -> Iterator[layer.QuantType]:
        return iter(layer.QuantType)

    def __getitem__(cls, name: str) -> layer.QuantType:
        return layer.QuantType[name.removeprefix("QUANT_")]

    def __contains__(cls, value: object) -> bool:
        return value in list(layer.QuantType)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, layer.QuantType)


class QuantType(metaclass=_Members):
    """Which tensor of a layer is quantized.

    Examples
    --------
    >>> QuantType.QUANT_OUTPUT is QuantType.OUTPUT is layer.QuantType.OUTPUT
    True
    """
