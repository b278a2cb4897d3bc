"""The conformance battery for torch models, with the names of :mod:`lilliput.testing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lilliput.core.compressor import Compressor
from lilliput.frameworks import part_of
from lilliput.testing import subject, torch_checks
from lilliput.testing.battery import SHARED_CHECKS, run_checks
from lilliput.testing.expect import Report
from lilliput.testing.lab import Lab
from lilliput.testing.subject import Check, Make


class Subject(subject.Subject):
    """A pruner or quantizer class, with its test settings.

    Parameters
    ----------
    cls : type of Compressor
        The class.
    config : mapping, optional
        Settings of every rule. By default half of the weights are pruned immediately, or
        weights are quantized to 8 bits. ``op_types`` restricts the test to models with such layers.
    make : callable, optional
        ``make(model, config_list, optimizer)`` returns a compressor, for a class whose constructor
        takes other arguments than these three. ``optimizer`` is None in most checks.

    Examples
    --------
    >>> from lilliput.torch import AGPPruner
    >>> Subject(AGPPruner).rules(op_names=["fc"])
    [{'final_sparsity': 0.5, 'start_epoch': 0, 'end_epoch': 0, 'op_names': ['fc']}]
    """

    lab: ClassVar[Lab] = part_of("torch", "lab")


def pruner_checks() -> list[Check]:
    """Return the checks for pruners; each takes a :class:`Subject` and raises if it fails.

    Examples
    --------
    >>> "check_exact_sparsity" in [check.__name__ for check in pruner_checks()]
    True
    """
    return [*SHARED_CHECKS["pruner"], *torch_checks.PRUNER_CHECKS]


def quantizer_checks() -> list[Check]:
    """Return the checks for quantizers; each takes a :class:`Subject` and raises if it fails.

    Examples
    --------
    >>> "check_gradient_reaches_weights" in [check.__name__ for check in quantizer_checks()]
    True
    """
    return [*SHARED_CHECKS["quantizer"], *torch_checks.QUANTIZER_CHECKS]


def check_pruner(
    cls: type[Compressor],
    config: Mapping[str, Any] | None = None,
    make: Make | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """Check that a pruner keeps every promise Lilliput makes to its users.

    Two class attributes of the pruner declare what it does not promise: ``exact_sparsity = False`` if
    ``sparsity`` is not an exact share of each layer's weights, and ``regrows = True`` if pruned
    weights may become nonzero again.

    Parameters
    ----------
    cls : type of Compressor
        The pruner class.
    config : mapping, optional
        Settings of every rule. By default ``{'sparsity': 0.5}``, or a ``final_sparsity``
        of 0.5 that is reached in the first epoch.
    make : callable, optional
        ``make(model, config_list, optimizer)`` creates the pruner if its constructor is unusual.
    skip : sequence of str
        Names of checks to skip, with or without ``check_``.

    Returns
    -------
    Report
        The checks that ran, and the seconds each took.

    Raises
    ------
    ConformanceError
        Lists every failed check with its reason.

    Examples
    --------
    >>> from lilliput.testing import ConformanceError
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
    return run_checks(Subject(cls, config, make), "pruner", pruner_checks(), skip)


def check_quantizer(
    cls: type[Compressor],
    config: Mapping[str, Any] | None = None,
    make: Make | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """Check that a quantizer keeps every promise Lilliput makes to its users.

    A class attribute of the quantizer declares what it does not promise: ``counts_levels = False`` if a
    layer's weight may take more than ``2**bits`` values, as with one scale per channel.

    The parameters are those of :func:`check_pruner`; ``config`` is ``{'quant_bits': 8}`` by default.

    Examples
    --------
    >>> from lilliput.torch import NaiveQuantizer
    >>> report = check_quantizer(NaiveQuantizer, {"quant_bits": 4}, skip=["compile", "export"])
    >>> report.skipped
    ('check_compile', 'check_export')
    """
    return run_checks(Subject(cls, config, make), "quantizer", quantizer_checks(), skip)
