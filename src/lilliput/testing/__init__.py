"""The conformance battery: find out at once everything that is wrong with a pruner or quantizer.

>>> from lilliput.testing import check_pruner
>>> from lilliput.torch import LevelPruner
>>> check_pruner(LevelPruner).failures
{}

Inside a test suite, one test per check reads better::

    @pytest.mark.parametrize("check", pruner_checks(), ids=lambda check: check.__name__)
    def test_my_pruner_conforms(check):
        check(Subject(MyPruner))
"""

from lilliput.testing.battery import (
    check_pruner,
    check_quantizer,
    pruner_checks,
    quantizer_checks,
)
from lilliput.testing.expect import ConformanceError, Report
from lilliput.testing.models import (
    Specimen,
    TinyCNN,
    TinyLSTM,
    TinyMLP,
    TinyTied,
    TinyTransformer,
)
from lilliput.testing.subject import Subject

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
    "pruner_checks",
    "quantizer_checks",
]
