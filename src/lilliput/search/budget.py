"""The budget of a search: latency, bytes, operations, parameters, bits, and a drop of the metric.

>>> parse_budget({"latency": 0.5, "bytes": "2 MB", "drop": 0.005})["bytes"]
Limit(name='bytes', value=2000000.0, is_share=False)
>>> parse_budget({"latency": "fast", "macs": -1})
Traceback (most recent call last):
    ...
lilliput.errors.ConfigError: budget: 2 problems
  - latency: received 'fast', expected a fraction of the original such as 0.5, or a string such as '12 ms'.
  - macs: received -1, expected a fraction of the original in (0, 1), or a number above 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lilliput.errors import ConfigError, Problem, nearest
from lilliput.printing import shown

NAMES = ("latency", "bytes", "macs", "params", "average_bits", "drop")
_UNITS = {
    "latency": {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3},
    "bytes": {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30},
    "macs": {"k": 1e3, "m": 1e6, "g": 1e9},
    "params": {"k": 1e3, "m": 1e6, "g": 1e9},
}
_EXPECTED = {
    "latency": "a fraction of the original such as 0.5, or a string such as '12 ms'",
    "bytes": "a fraction of the original in (0, 1), a number of bytes, or a string such as '2 MB'",
    "macs": "a fraction of the original in (0, 1), or a number above 1",
    "params": "a fraction of the original in (0, 1), or a number above 1",
    "average_bits": "a number of bits from 1 to 32",
    "drop": "the largest acceptable drop of the metric, a number from 0",
}
_TEXT = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """One budget: in milliseconds, bytes and so on, or as a share of the original's cost."""

    name: str
    value: float
    is_share: bool

    def of(self, whole: float) -> float:
        """Return the largest allowed value, given the original's cost."""
        return self.value * whole if self.is_share else self.value

    def __str__(self) -> str:
        if self.is_share:
            return f"{self.value:g} of the original's {self.name}"
        return f"{self.name} {amount(self.name, self.value)}"


def parse_budget(budget: Any) -> dict[str, Limit]:
    """Return the limits of a budget, or raise with all of its problems."""
    if not isinstance(budget, Mapping) or not budget:
        raise ConfigError(
            f"budget: received {shown(budget)}, expected a dict such as {{'latency': 0.5, 'drop': 0.005}} "
            f"with some of {', '.join(NAMES)}."
        )
    problems, limits = [], {}
    for name, value in budget.items():
        if name not in NAMES:
            text = f"unknown budget.{nearest(name, NAMES)} Expected some of {', '.join(NAMES)}."
            problems.append(Problem(str(name), text))
            continue
        found = _limit(name, value)
        if found is None:
            problems.append(Problem(name, f"received {shown(value)}, expected {_EXPECTED[name]}."))
        else:
            limits[name] = found
    if problems:
        raise ConfigError(problems, title="budget")
    if set(limits) == {"drop"}:
        raise ConfigError(
            "budget: 'drop' alone does not define what to reduce; add latency, bytes, macs, params "
            "or average_bits."
        )
    return limits


def _limit(name: str, value: Any) -> Limit | None:
    if isinstance(value, str):
        return _written(name, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    if name == "drop":
        return Limit(name, float(value), False) if value >= 0 else None
    if name == "average_bits":
        return Limit(name, float(value), False) if 1 <= value <= 32 else None
    if 0 < value < 1:
        return Limit(name, float(value), True)
    is_amount = value > 1 and name != "latency"  # 12 could be seconds, so a unit is required
    return Limit(name, float(value), False) if is_amount else None


def _written(name: str, text: str) -> Limit | None:
    found = _TEXT.fullmatch(text)
    units = _UNITS.get(name, {})
    unit = found.group(2).lower() if found else ""
    if found is None or unit not in units:
        return None
    try:
        value = float(found.group(1)) * units[unit]
    except ValueError:  # two decimal points
        return None
    return Limit(name, value, False) if value > 0 and math.isfinite(value) else None


def amount(name: str, value: float) -> str:
    """Return an amount with its unit.

    Examples
    --------
    >>> amount("latency", 1.234), amount("bytes", 12_345.0), amount("average_bits", 5.0)
    ('1.23 ms', '12,345 bytes', '5 bits')
    """
    if name == "latency":
        return f"{value:.3g} ms"
    if name == "average_bits":
        return f"{value:.4g} bits"
    if name == "drop":
        return f"{value:.4g}"
    return f"{value:,.0f}" + (" bytes" if name == "bytes" else "")
