"""Run every check on a class for models of Keras, on whichever backend Keras runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lilliput.core.compressor import Compressor
from lilliput.testing.expect import Report
from lilliput.testing.keras.checks_common import COMMON_CHECKS
from lilliput.testing.keras.checks_compiled import COMPILED_CHECKS
from lilliput.testing.keras.checks_precision import PRECISION_CHECKS
from lilliput.testing.keras.checks_pruner import PRUNER_CHECKS
from lilliput.testing.keras.checks_quantizer import QUANTIZER_CHECKS
from lilliput.testing.keras.checks_saving import SAVING_CHECKS
from lilliput.testing.keras.checks_training import TRAINING_CHECKS, ZERO_CHECKS
from lilliput.testing.keras.subject import Check, Make, Subject
from lilliput.testing.running import run_checks

_FOR_ALL = (
    *COMMON_CHECKS,
    *TRAINING_CHECKS,
    *SAVING_CHECKS,
    *COMPILED_CHECKS,
    *PRECISION_CHECKS,
)


def pruner_checks() -> list[Check]:
    """Return the checks for pruners; each takes a :class:`Subject` and raises if it fails.

    Examples
    --------
    >>> "check_exact_sparsity" in [check.__name__ for check in pruner_checks()]
    True
    """
    return [*PRUNER_CHECKS, *ZERO_CHECKS, *_FOR_ALL]


def quantizer_checks() -> list[Check]:
    """Return the checks for quantizers; each takes a :class:`Subject` and raises if it fails.

    Examples
    --------
    >>> "check_gradient_reaches_weights" in [check.__name__ for check in quantizer_checks()]
    True
    """
    return [*QUANTIZER_CHECKS, *_FOR_ALL]


def check_pruner(
    cls: type[Compressor],
    config: Mapping[str, Any] | None = None,
    make: Make | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """Check that a pruner keeps every promise Lilliput makes to users of Keras.

    It takes a few seconds. Two class attributes of the pruner say what it does not promise:
    ``exact_sparsity = False`` if ``sparsity`` is no exact share of each layer's weights, and
    ``regrows = True`` if weights once pruned may come back.

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
    >>> import keras
    >>> from lilliput.keras import Pruner
    >>> from lilliput.testing.keras import ConformanceError
    >>> class Positive(Pruner):
    ...     def calc_mask(self, layer_info, weight):
    ...         return keras.ops.ones_like(weight)
    >>> others = [check.__name__ for check in pruner_checks()]
    >>> others.remove("check_exact_sparsity")
    >>> try:
    ...     check_pruner(Positive, skip=others)
    ... except ConformanceError as error:
    ...     print(error.failures["check_exact_sparsity"])
    sparsity 0.1 with random weights: layer 'conv1' has 0 zeros of 216, expected 22.
    """
    return run_checks(Subject(cls, config, make), "pruner", pruner_checks(), skip)


def check_quantizer(
    cls: type[Compressor],
    config: Mapping[str, Any] | None = None,
    make: Make | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """Check that a quantizer keeps every promise Lilliput makes to users of Keras.

    It takes a few seconds. A class attribute of the quantizer says what it does not promise:
    ``counts_levels = False`` if a layer's weight may take more than ``2**bits`` values, as with a scale
    for each channel.

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
    >>> from lilliput.keras import NaiveQuantizer
    >>> others = [check.__name__ for check in quantizer_checks()]
    >>> others.remove("check_quantized_weights_follow")
    >>> print(check_quantizer(NaiveQuantizer, {"quant_bits": 4}, skip=others))  # doctest: +ELLIPSIS
    NaiveQuantizer passes 1 checks (... skipped).
    """
    return run_checks(Subject(cls, config, make), "quantizer", quantizer_checks(), skip)
