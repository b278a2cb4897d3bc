"""Run every check on a class, and report all failures together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from lilliput.errors import AlgorithmError, ConfigError, nearest
from lilliput.testing.checks_common import COMMON_CHECKS
from lilliput.testing.checks_pruner import PRUNER_CHECKS
from lilliput.testing.checks_quantizer import QUANTIZER_CHECKS
from lilliput.testing.checks_saving import SAVING_CHECKS
from lilliput.testing.expect import ConformanceError, Report
from lilliput.testing.subject import Check, Subject

# The checks of pruners and quantizers on every framework.
SHARED_CHECKS: dict[str, tuple[Check, ...]] = {
    "pruner": (*PRUNER_CHECKS, *COMMON_CHECKS, *SAVING_CHECKS),
    "quantizer": (*QUANTIZER_CHECKS, *COMMON_CHECKS, *SAVING_CHECKS),
}


def run_checks(subject: Subject, kind: str, checks: Iterable[Check], skip: Sequence[str]) -> Report:
    """Run every check that is not skipped; raise a ConformanceError that lists all failures."""
    _expect_kind(subject.cls, kind)
    by_name = {check.__name__: check for check in checks}
    skipped = _full_names(skip, list(by_name))
    report = Report(subject.name, skipped=skipped)
    for name, check in by_name.items():
        if name in skipped:
            continue
        start = time.perf_counter()
        try:
            check(subject)
        except Exception as error:  # any error of an author's code is a finding
            report.failures[name] = error
        report.seconds[name] = time.perf_counter() - start
    if report.failures:
        first = next(iter(report.failures.values()))
        raise ConformanceError(str(report), report.failures) from first
    return report


def _expect_kind(cls: Any, kind: str) -> None:
    if getattr(cls, "kind", None) != kind:
        name = getattr(cls, "__name__", repr(cls))
        raise AlgorithmError(
            f"check_{kind} received {name}, expected a subclass of {kind.title()}."
        )


def _full_names(skip: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    names = [skip] if isinstance(skip, str) else skip
    full = [x if x.startswith("check_") else f"check_{x}" for x in names]
    unknown = [name for name in full if name not in known]
    if unknown:
        raise ConfigError(f"skip: no check is called {unknown[0]!r}.{nearest(unknown[0], known)}")
    return tuple(full)
