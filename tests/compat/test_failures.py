"""Errors through the shim: those of ``schema`` beside ours, and names that match nothing."""

import logging
import sys
import types

import pytest
import torch
from torch import nn

import lilliput.torch
from lilliput.compat.nni import install, uninstall
from lilliput.errors import ConfigError


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


class SchemaError(Exception):
    """As in the package: made from lists, which ``code`` joins."""

    def __init__(self, autos, errors=None):
        self.autos = autos if type(autos) is list else [autos]
        self.errors = errors if type(errors) is list else [errors]
        Exception.__init__(self, autos, errors)

    @property
    def code(self):
        given = [error for error in self.errors if error is not None]
        return "\n".join(given or [auto for auto in self.autos if auto is not None])


@pytest.fixture
def schema(monkeypatch):
    module = types.ModuleType("schema")
    module.SchemaError = SchemaError
    monkeypatch.setitem(sys.modules, "schema", module)
    return module


PATHS = [
    "nni.compression.torch.LevelPruner",
    "nni.compression.torch.QAT_Quantizer",
    "nni.compression.pytorch.pruning.L1NormPruner",
    "nni.compression.pruning.L1NormPruner",
]


def named(path):
    home, _, name = path.rpartition(".")
    return getattr(__import__(home, fromlist=[name]), name)


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_config_list_is_a_schema_error_as_well(schema, path):
    cls = named(path)
    with pytest.raises(schema.SchemaError) as caught:
        cls(nn.Linear(2, 2), [{"op_types": ["Linear"], "sparsityy": 1}])
    assert isinstance(caught.value, ConfigError) and isinstance(caught.value, ValueError)
    assert caught.value.problems[0].path == "rule 0 → sparsityy"
    assert caught.value.code == str(caught.value)
    assert "Did you mean 'sparsity'" in str(caught.value) or "Quantizer" in str(caught.value)
    with pytest.raises(ConfigError) as plain:
        lilliput.torch.LevelPruner(nn.Linear(2, 2), [{"sparsityy": 1}])
    assert not isinstance(plain.value, schema.SchemaError)  # who does not come through the shim


def test_a_config_list_that_is_checked_at_compress_is_one_too(schema):
    cls = named("nni.compressors.torchCompressor.LevelPruner")
    with pytest.raises(schema.SchemaError):
        cls([{"sparsity": 80}])(nn.Linear(2, 2))


@pytest.mark.parametrize("there", [None, types.ModuleType("schema")], ids=["absent", "another"])
def test_without_the_package_it_is_ours_alone(monkeypatch, there):
    monkeypatch.setitem(sys.modules, "schema", there)
    with pytest.raises(ConfigError) as caught:
        named(PATHS[0])(nn.Linear(2, 2), [{"sparsity": 80}])
    assert type(caught.value) is ConfigError


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rule", [{"op_names": ["nowhere"]}, {"op_types": ["Nowhere"]}])
def test_what_matches_nothing_is_a_warning_and_the_rest_is_compressed(caplog, path, rule):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 4))
    asked = {"quant_types": ["weight"]} if "Quantizer" in path else {"sparsity": 0.5}
    with caplog.at_level(logging.WARNING, "lilliput"):
        made = named(path)(model, [{"op_types": ["Conv2d"], **asked}, {**rule, **asked}])
    assert "owhere' matches no layer" in caplog.text
    assert [wrapper.name for wrapper in made.get_modules_wrapper()] == ["0"]
    with pytest.raises(ConfigError, match="matches no layer"):
        type(made).adapts(model, [{"op_types": ["Conv2d"], **asked}, {**rule, **asked}])


@pytest.mark.parametrize("path", PATHS)
def test_where_nothing_matches_the_model_stays_as_it_is(caplog, path):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 4))
    x = torch.randn(2, 1, 3, 3)
    before = model(x)
    asked = {"quant_types": ["weight"]} if "Quantizer" in path else {"sparsity": 0.5}
    with caplog.at_level(logging.WARNING, "lilliput"):
        made = named(path)(model, [{"op_names": ["nowhere"], **asked}])
        made.compress()
    assert "matches no layer" in caplog.text
    assert torch.equal(model(x), before)
    assert made.get_modules_wrapper() == []


def test_a_pattern_that_python_cannot_compile_is_wrong_in_any_case():
    with pytest.raises(ConfigError, match="not a regular expression"):
        named(PATHS[0])(nn.Linear(2, 2), [{"op_names": ["re:("], "sparsity": 0.5}])
