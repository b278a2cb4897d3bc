"""Run every check on a class, and report all that is wrong at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lilliput.core.compressor import Compressor
from lilliput.errors import AlgorithmError, ConfigError, nearest
from lilliput.testing.checks_common import COMMON_CHECKS
from lilliput.testing.checks_graph import GRAPH_CHECKS
from lilliput.testing.checks_pruner import PRUNER_CHECKS
from lilliput.testing.checks_quantizer import QUANTIZER_CHECKS
from lilliput.testing.checks_saving import SAVING_CHECKS
from lilliput.testing.expect import ConformanceError, Report
from lilliput.testing.subject import Check, Make, Subject


def pruner_checks() -> list[Check]:
    """Return the checks for pruners; each takes a :class:`Subject` and raises if it fails.

    Examples
    --------
    >>> "check_exact_sparsity" in [check.__name__ for check in pruner_checks()]
    True
    """
    return [*PRUNER_CHECKS, *COMMON_CHECKS, *SAVING_CHECKS, *GRAPH_CHECKS]


def quantizer_checks() -> list[Check]:
    """Return the checks for quantizers; each takes a :class:`Subject` and raises if it fails.

    Examples
    --------
    >>> "check_gradient_reaches_weights" in [check.__name__ for check in quantizer_checks()]
    True
    """
    return [*QUANTIZER_CHECKS, *COMMON_CHECKS, *SAVING_CHECKS, *GRAPH_CHECKS]


def check_pruner(
    cls: type[Compressor],
    config: Mapping[str, Any] | None = None,
    make: Make | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """Check that a pruner keeps every promise Lilliput makes to its users.

    Two class attributes of the pruner say what it does not promise: ``exact_sparsity = False`` if
    ``sparsity`` is no exact share of each layer's weights, and ``regrows = True`` if weights once
    pruned may come back.

    Parameters
    ----------
    cls : type of Compressor
        The pruner class.
    config : mapping, optional
        Settings that go into every rule. By default ``{'sparsity': 0.5}``, or a ``final_sparsity``
        of 0.5 that is reached in the first epoch.
    make : callable, optional
        ``make(model, config_list, optimizer)`` builds the pruner if its constructor is unusual.
    skip : sequence of str
        Names of checks to leave out, with or without ``check_``.

    Returns
    -------
    Report
        Which checks ran, and the seconds each took.

    Raises
    ------
    ConformanceError
        Lists every failed check with its reason.

    Examples
    --------
    >>> from lilliput.torch import Pruner
    >>> class Median(Pruner):
    ...     def calc_mask(self, wrapper, wrapper_idx=None):
    ...         return wrapper.weight.abs() > wrapper.weight.abs().median()
    >>> others = [check.__name__ for check in pruner_checks()]
    >>> others.remove("check_exact_sparsity")
    >>> try:
    ...     check_pruner(Median, skip=others)
    ... except ConformanceError as error:
    ...     print(error.failures["check_exact_sparsity"])
    sparsity 0 with random weights: layer 'conv1' has 108 zeros of 216, expected 0.
    """
    _expect_kind(cls, "pruner")
    return _run(Subject(cls, config, make), pruner_checks(), skip)


def check_quantizer(
    cls: type[Compressor],
    config: Mapping[str, Any] | None = None,
    make: Make | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """Check that a quantizer keeps every promise Lilliput makes to its users.

    A class attribute of the quantizer says what it does not promise: ``counts_levels = False`` if a
    layer's weight may take more than ``2**bits`` values, as with a scale for each channel.

    Parameters
    ----------
    cls : type of Compressor
        The quantizer class.
    config : mapping, optional
        Settings that go into every rule. By default ``{'quant_bits': 8}``.
    make : callable, optional
        ``make(model, config_list, optimizer)`` builds the quantizer if its constructor is unusual.
    skip : sequence of str
        Names of checks to leave out, with or without ``check_``.

    Returns
    -------
    Report
        Which checks ran, and the seconds each took.

    Raises
    ------
    ConformanceError
        Lists every failed check with its reason.

    Examples
    --------
    >>> from lilliput.torch import NaiveQuantizer
    >>> report = check_quantizer(NaiveQuantizer, {"quant_bits": 4}, skip=["compile", "export"])
    >>> report.skipped
    ('check_compile', 'check_export')
    """
    _expect_kind(cls, "quantizer")
    return _run(Subject(cls, config, make), quantizer_checks(), skip)


def _expect_kind(cls: type[Compressor], kind: str) -> None:
    if getattr(cls, "kind", None) != kind:
        name = getattr(cls, "__name__", repr(cls))
        raise AlgorithmError(
            f"check_{kind} received {name}, expected a subclass of {kind.title()}."
        )


def _run(subject: Subject, checks: Iterable[Check], skip: Sequence[str]) -> Report:
    by_name = {check.__name__: check for check in checks}
    skipped = _full_names(skip, list(by_name))
    report = Report(subject.name, skipped=skipped)
    for name, check in by_name.items():
        if name in skipped:
            continue
        start = time.perf_counter()
        try:
            check(subject)
        except Exception as error:  # whatever an author's code raises is a finding
            report.failures[name] = error
        report.seconds[name] = time.perf_counter() - start
    if report.failures:
        first = next(iter(report.failures.values()))
        raise ConformanceError(str(report), report.failures) from first
    return report


def _full_names(skip: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    names = [skip] if isinstance(skip, str) else skip
    full = [x if x.startswith("check_") else f"check_{x}" for x in names]
    unknown = [name for name in full if name not in known]
    if unknown:
        raise ConfigError(f"skip: no check is called {unknown[0]!r}.{nearest(unknown[0], known)}")
    return tuple(full)
