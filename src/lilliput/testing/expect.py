"""Failure messages of the checks, and the report of the whole battery.

Values are compared as NumPy arrays, so that one set of functions works for every framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lilliput.errors import LilliputError

Array = Any  # a NumPy array

# Tolerance for another order of summation; a wrong weight differs by far more.
_TOLERANCES = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


class ConformanceError(LilliputError, AssertionError):
    """An algorithm breaks a promise that Lilliput makes to its users.

    Parameters
    ----------
    message : str
        The problem.
    failures : mapping of str to Exception
        The cause for each failed check, when several were run.
    """

    def __init__(self, message: str, failures: Mapping[str, Exception] | None = None) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})


@dataclass(frozen=True)
class Report:
    """The battery's report on one class.

    Parameters
    ----------
    name : str
        The class.
    seconds : dict
        The duration of each check, in order of execution.
    failures : dict
        The cause for each check that failed.
    skipped : tuple of str
        Checks that were skipped on request.
    """

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the verdict, and one line per reason; checks that fail for the same one share a line."""
        total, bad = len(self.seconds), len(self.failures)
        left_out = f" ({len(self.skipped)} skipped)" if self.skipped else ""
        if not bad:
            return f"{self.name} passes {total} checks{left_out}."
        checks: dict[str, list[str]] = {}
        for check, error in self.failures.items():
            checks.setdefault(reason(error), []).append(check)
        lines = [f"  - {', '.join(names)}: {cause}" for cause, names in checks.items()]
        return "\n".join([f"{self.name} fails {bad} of {total} checks{left_out}:", *lines])


def reason(error: BaseException) -> str:
    """Return the first line of an error, with its type unless that is expected.

    Examples
    --------
    >>> reason(ConformanceError("too few zeros.")), reason(KeyError("x"))
    ('too few zeros.', "KeyError: 'x'")
    """
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else "(no message)"
    return first if isinstance(error, ConformanceError) else f"{type(error).__name__}: {first}"


def expect(condition: object, message: str) -> None:
    """Raise a ConformanceError unless the condition holds."""
    if not condition:
        raise ConformanceError(message)


def expect_equal(actual: Array, expected: Array, what: str) -> None:
    """Expect two arrays to agree in shape, dtype and every bit."""
    _expect_alike(actual, expected, what)
    found, wanted = _values(actual), _values(expected)
    expect(np.array_equal(found, wanted), f"{what}: {_gap(found, wanted)}, expected no difference.")


def expect_close(actual: Array, expected: Array, what: str, dtype: str | None = None) -> None:
    """Expect two arrays to agree up to the rounding of their dtype, or of the one they were computed in."""
    _expect_alike(actual, expected, what)
    found, wanted = _values(actual), _values(expected)
    tolerance = _TOLERANCES.get(dtype or str(actual.dtype), 1e-5)
    scale = max(1.0, float(np.abs(wanted).max())) if wanted.size else 1.0
    is_close = np.allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)
    expect(is_close, f"{what}: {_gap(found, wanted)}, expected at most {tolerance * scale:g}.")


def expect_zero(values: Array, what: str) -> None:
    """Expect nothing but exact zeros."""
    found = _values(values)
    count = int(np.count_nonzero(found))
    expect(count == 0, f"{what}: {count} of {found.size} are not zero.")


def _expect_alike(actual: Array, expected: Array, what: str) -> None:
    received = (tuple(actual.shape), str(actual.dtype))
    wanted = (tuple(expected.shape), str(expected.dtype))
    expect(received == wanted, f"{what}: received {received}, expected {wanted}.")


def _values(array: Array) -> Any:
    """Return an array of float64, which can represent the values of every other dtype."""
    return np.asarray(array).astype(np.float64)


def _gap(actual: Any, expected: Any) -> str:
    return f"they differ by up to {float(np.abs(actual - expected).max()):.3g}"
