"""The conformance battery for Keras models, on TensorFlow, JAX or torch.

It has the names of :mod:`lilliput.testing`, and most of its checks. It runs on the current
backend::

    from lilliput.keras import Pruner
    from lilliput.testing.keras import check_pruner

    class MyPruner(Pruner):
        ...

    print(check_pruner(MyPruner))

Run it once per backend: ``KERAS_BACKEND=jax python check.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lilliput.frameworks import part_of
from lilliput.lazy import lazily_from
from lilliput.testing import keras_checks, subject
from lilliput.testing.battery import SHARED_CHECKS, run_checks
from lilliput.testing.checks_joint import check_together
from lilliput.testing.expect import ConformanceError, Report
from lilliput.testing.lab import Lab
from lilliput.testing.subject import Check, Make

if TYPE_CHECKING:
    from lilliput.frameworks.keras.lab_models import (
        Specimen,
        TinyAttention,
        TinyCNN,
        TinyLSTM,
        TinyMLP,
        TinyNested,
        TinySubclassed,
        TinyUntold,
        make_input,
    )

__all__ = [
    "ConformanceError",
    "Report",
    "Specimen",
    "Subject",
    "TinyAttention",
    "TinyCNN",
    "TinyLSTM",
    "TinyMLP",
    "TinyNested",
    "TinySubclassed",
    "TinyUntold",
    "check_pruner",
    "check_quantizer",
    "check_together",
    "make_input",
    "pruner_checks",
    "quantizer_checks",
]

_MODELS = [name for name in __all__ if name.startswith("Tiny")] + ["Specimen", "make_input"]
__getattr__ = lazily_from(__name__, dict.fromkeys(_MODELS, "lilliput.frameworks.keras.lab_models"))[
    0
]


class Subject(subject.Subject):
    """As for torch, with Keras models."""

    lab: ClassVar[Lab] = part_of("keras", "lab")


def pruner_checks() -> list[Check]:
    """Return the checks for pruners; each takes a :class:`Subject` and raises if it fails."""
    return [*SHARED_CHECKS["pruner"], *keras_checks.PRUNER_CHECKS]


def quantizer_checks() -> list[Check]:
    """Return the checks for quantizers; each takes a :class:`Subject` and raises if it fails."""
    return [*SHARED_CHECKS["quantizer"], *keras_checks.QUANTIZER_CHECKS]


def check_pruner(cls: Any, config: Any = None, make: Make | None = None, skip: Any = ()) -> Report:
    """Run all conformance checks on a pruner with Keras models.

    The parameters are those of :func:`lilliput.testing.check_pruner`.
    """
    return run_checks(Subject(cls, config, make), "pruner", pruner_checks(), skip)


def check_quantizer(
    cls: Any, config: Any = None, make: Make | None = None, skip: Any = ()
) -> Report:
    """Run all conformance checks on a quantizer with Keras models.

    The parameters are those of :func:`lilliput.testing.check_quantizer`.

    Examples
    --------
    >>> from lilliput.keras import NaiveQuantizer
    >>> others = [check.__name__ for check in quantizer_checks()]
    >>> others.remove("check_quantized_weights_follow")
    >>> print(check_quantizer(NaiveQuantizer, {"quant_bits": 4}, skip=others))  # doctest: +ELLIPSIS
    NaiveQuantizer passes 1 checks (... skipped).
    """
    return run_checks(Subject(cls, config, make), "quantizer", quantizer_checks(), skip)
