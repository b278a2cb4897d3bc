"""The conformance battery: report every fault of a pruner or quantizer in one run.

>>> from lilliput.testing import check_pruner
>>> from lilliput.torch import LevelPruner
>>> check_pruner(LevelPruner).failures
{}

Inside a test suite, one test per check reads better::

    @pytest.mark.parametrize("check", pruner_checks(), ids=lambda check: check.__name__)
    def test_my_pruner_conforms(check):
        check(Subject(MyPruner))

These names are for torch models; :mod:`lilliput.testing.keras` has the same ones for Keras models. Names
are loaded on first use, so that a framework is only imported if it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lilliput.lazy import lazily_from

if TYPE_CHECKING:
    from lilliput.frameworks.torch.lab_models import (
        Specimen,
        TinyCNN,
        TinyLSTM,
        TinyMLP,
        TinyTied,
        TinyTransformer,
    )
    from lilliput.testing.checks_joint import check_together
    from lilliput.testing.expect import ConformanceError, Report
    from lilliput.testing.torch import (
        Subject,
        check_pruner,
        check_quantizer,
        pruner_checks,
        quantizer_checks,
    )

_HOMES = {
    "lilliput.testing.checks_joint": ("check_together",),
    "lilliput.testing.expect": ("ConformanceError", "Report"),
    "lilliput.frameworks.torch.lab_models": (
        *("Specimen", "TinyCNN", "TinyLSTM", "TinyMLP", "TinyTied", "TinyTransformer"),
    ),
    "lilliput.testing.torch": (
        "Subject",
        "check_pruner",
        "check_quantizer",
        "pruner_checks",
        "quantizer_checks",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ConformanceError",
    "Report",
    "Specimen",
    "Subject",
    "TinyCNN",
    "TinyLSTM",
    "TinyMLP",
    "TinyTied",
    "TinyTransformer",
    "check_pruner",
    "check_quantizer",
    "check_together",
    "pruner_checks",
    "quantizer_checks",
]

__getattr__, __dir__ = lazily_from(__name__, _HOME_OF)
