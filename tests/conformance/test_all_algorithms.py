"""Every registered algorithm passes every check of the public battery."""

import pytest

from lilliput.algorithms import list_pruners, list_quantizers, pruner, quantizer
from lilliput.testing import Subject, pruner_checks, quantizer_checks

# Settings for algorithms whose defaults do not prune at once, by registered name.
SETTINGS: dict[str, dict[str, object]] = {}


def cases(names, checks):
    return [
        pytest.param(name, check, id=f"{name}-{check.__name__.removeprefix('check_')}")
        for name in names
        for check in checks
    ]


@pytest.mark.parametrize(("name", "check"), cases(list_pruners(), pruner_checks()))
def test_pruner_conforms(name, check):
    check(Subject(pruner(name), SETTINGS.get(name)))


@pytest.mark.parametrize(("name", "check"), cases(list_quantizers(), quantizer_checks()))
def test_quantizer_conforms(name, check):
    check(Subject(quantizer(name), SETTINGS.get(name)))
