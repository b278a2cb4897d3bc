"""The public names: one table; the stubs written from it show each change of it to reviewers."""

import inspect
from importlib import import_module

import pytest

import lilliput
import lilliput.torch
from lilliput.public import ALL, TABLE, homes_of
from lilliput.registry import pruners, quantizers
from lilliput.stubs import stub_of, stub_path

ALGORITHMS = ("lilliput.pruning.", "lilliput.quantization.")


@pytest.mark.parametrize("module", ALL)
def test_type_checkers_see_the_public_names(module):
    advice = "run: python -m lilliput.stubs. A change is one for users: the changelog tells them."
    assert stub_path(module).read_text(encoding="utf-8") == stub_of(module), advice


@pytest.mark.parametrize("module", [lilliput, lilliput.torch], ids=["top", "torch"])
def test_every_public_name_is_there(module):
    assert all(hasattr(module, name) for name in module.__all__)
    names = set(module.__all__) - {"__version__"}
    assert names == homes_of(module.__name__).keys()


def test_no_name_of_a_module_has_two_homes():
    for module in ALL:
        rows = [names.split() for modules, _, names in TABLE if module in modules]
        names = [name for row in rows for name in row]
        assert sorted(names) == sorted(set(names))


def test_classes_and_functions_are_defined_where_the_table_says():
    for name, home in homes_of("lilliput").items():
        found = getattr(import_module(home), name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__module__ == home, name


def test_algorithms_are_public_where_they_work():
    """An algorithm is added by its file and a line of the table."""
    for registry in (pruners, quantizers):
        for cls in registry:
            if cls.__module__.startswith(ALGORITHMS):
                public = {module for module in ALL if cls.__name__ in homes_of(module)}
                assert public == {"lilliput", *(f"lilliput.{name}" for name in cls.backends)}


def test_tab_completion_lists_every_public_name_and_nothing_else():
    for module in (lilliput, lilliput.torch):
        assert dir(module) == sorted(module.__all__)


def test_both_doors_lead_to_the_same_classes():
    shared = set(lilliput.__all__) & set(lilliput.torch.__all__)
    assert len(shared) > 10
    assert all(getattr(lilliput, name) is getattr(lilliput.torch, name) for name in shared)


OLDER = {
    "AGP_Pruner": "AGPPruner",
    "AGPruner": "AGPPruner",
    "ActivationAPoZRankFilterPruner": "ActivationAPoZRankPruner",
    "ActivationMeanRankFilterPruner": "ActivationMeanRankPruner",
    "L1FilterPruner": "L1NormPruner",
    "L2FilterPruner": "L2NormPruner",
    "LsqPlusQuantizer": "LSQPlusQuantizer",
    "LsqQuantizer": "LSQQuantizer",
    "ObserverQuantizer": "PTQQuantizer",
    "PtqQuantizer": "PTQQuantizer",
    "QAT_Quantizer": "QATQuantizer",
    "QATquantizer": "QATQuantizer",
    "TaylorFOWeightFilterPruner": "TaylorFOWeightPruner",
}


@pytest.mark.parametrize("module", [lilliput, lilliput.torch], ids=["top", "torch"])
def test_a_name_of_nni_is_answered_with_todays_and_with_the_shim(module):
    for older, today in OLDER.items():
        with pytest.raises(AttributeError) as caught:
            getattr(module, older)
        assert f"{older!r}: it is {today} today" in str(caught.value)
        assert "python -m lilliput.compat.nni" in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'$"):
        _ = module.Nonsense
