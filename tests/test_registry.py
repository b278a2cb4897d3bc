from importlib.metadata import EntryPoint, EntryPoints

import pytest

import lilliput
from lilliput import registry as registry_module
from lilliput.errors import ConfigError
from lilliput.registry import Registry


@pytest.fixture
def registry():
    found = Registry("pruner", "lilliput.test-pruners")

    @found.register("half", "fifty_percent")
    class HalfPruner:
        pass

    return found


@pytest.mark.parametrize("name", ["half", "HalfPruner", "half-pruner", "Fifty_Percent", "HALF"])
def test_names_are_found_whatever_their_case_and_separators(registry, name):
    assert registry.get(name).__name__ == "HalfPruner"
    assert name in registry


def test_an_unknown_name_is_answered_with_the_nearest_one(registry):
    with pytest.raises(ConfigError, match="'haf'.*Did you mean 'half'.*Known: half"):
        registry.get("haf")


def test_a_name_cannot_be_taken_twice(registry):
    with pytest.raises(ConfigError, match="fiftypercent.*taken"):
        registry.register("other", "fifty-percent")(type("Other", (), {}))


def test_names_are_listed_by_glob(registry):
    registry.register("hard")(type("Hard", (), {}))
    assert registry.names("ha*") == ["half", "hard"]
    assert registry.names("*lf") == ["half"]


def test_third_party_packages_register_through_entry_points(registry, monkeypatch):
    plugin = EntryPoint("mine", "collections:OrderedDict", "lilliput.test-pruners")
    monkeypatch.setattr(
        registry_module, "entry_points", lambda group: EntryPoints([plugin]).select(group=group)
    )
    assert registry.get("mine").__name__ == "OrderedDict"


def test_built_in_algorithms_are_listed_and_found_by_their_old_names():
    assert {"agp", "level"} <= set(lilliput.list_pruners())
    assert {"dorefa", "naive"} <= set(lilliput.list_quantizers())
    assert lilliput.pruner("AGP_Pruner") is lilliput.pruner("AGPruner") is lilliput.AGPPruner
    assert lilliput.quantizer("DoReFaQuantizer") is lilliput.DoReFaQuantizer
