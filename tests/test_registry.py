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


def test_a_registered_name_is_not_replaced_by_another_class(registry):
    with pytest.raises(ConfigError, match="already taken"):
        registry.register("half")(type("Impostor", (), {}))
    again = type("HalfPruner", (), {"__qualname__": registry.get("half").__qualname__})
    again.__module__ = registry.get("half").__module__
    assert registry.register("half")(again) is registry.get("half")


def test_a_broken_plugin_is_reported_when_it_is_asked_for_and_only_then(registry, monkeypatch):
    plugin = EntryPoint("mine", "no_such_package:Thing", "lilliput.test-pruners")
    monkeypatch.setattr(
        registry_module, "entry_points", lambda group: EntryPoints([plugin]).select(group=group)
    )
    assert registry.names() == ["half"]
    for _ in range(2):
        with pytest.raises(ConfigError, match="'mine' could not be loaded from no_such_package"):
            registry.get("mine")
