"""The description of one layer of a file, in any format."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Layer:
    """One layer of the file.

    Parameters
    ----------
    name : str
        The path of its module.
    op : str
        Conv, ConvTranspose, Gemm, MatMul, or another operator that multiplies.
    weight_dtype : str
        The type of its stored weight; empty where two activations are multiplied.
    macs : int, optional
        Multiplications of one forward pass, for one example if the batch is dynamic.
    integer : bool
        Whether the runtime computes it with integers.
    kernel : str
        The kernel that the runtime executes.
    reason : str
        Why it stays in floating point.
    weight_only : bool
        Whether its weight is integer and its input is not; a kernel may unpack the weight on the fly.
    """

    name: str
    op: str
    weight_dtype: str
    macs: int | None
    integer: bool = False
    kernel: str = ""
    reason: str = ""
    weight_only: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def some_of(names: list[str], count: int = 4) -> str:
    """Return a few of many names.

    Examples
    --------
    >>> some_of(["a", "b", "c"], count=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
