"""Config lists and files of 2019 for TensorFlow: types of a graph, sections, several frameworks."""

import pytest
from torch import nn

import lilliput
from lilliput.compat.nni.classes.older_names import with_older_names
from lilliput.compat.nni.config.dialects import translate
from lilliput.errors import ConfigError

TF = "tfAGPruner: [{final_sparsity: 0.6, op_types: [Conv2D]}]\n"
TORCH = "torchAGPruner: [{final_sparsity: 0.5, op_types: [Linear]}]\n"
BOTH = "AGPruner: {config: [{final_sparsity: 0.5}]}\n"
AGPPruner, LevelPruner = map(with_older_names, (lilliput.AGPPruner, lilliput.LevelPruner))


class ForKeras(LevelPruner):
    backends = ("keras",)


@pytest.fixture
def write(tmp_path):
    def write(text, name="rules.yaml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize("key", ["support_type", "support_layer"])
def test_operations_of_a_graph_are_read_as_the_layers_that_compute_them(key):
    result = translate([{key: ["Conv2D", "MatMul", "DepthwiseConv2dNative"], "sparsity": 0.5}])
    assert result.rules == [{"sparsity": 0.5, "op_types": ["Conv2D", "Dense", "DepthwiseConv2D"]}]
    assert "rule 0: 'MatMul' (an operation of TensorFlow 1) reads as 'Dense'" in result.notes
    assert result.problems == []


def test_a_modern_rule_means_its_types_as_they_stand():
    rules = [{"op_types": ["MatMul"], "sparsity": 0.5}]
    assert translate(rules).rules == rules
    assert translate(rules).notes == []


def test_a_file_for_all_frameworks_is_read_at_once(write):
    pruner = AGPPruner()
    file = write(BOTH)
    pruner.load_configure(file)
    file.unlink()
    assert pruner.config_list == [{"final_sparsity": 0.5}]


def test_a_class_for_one_framework_takes_the_section_of_it(write):
    pruner = ForKeras()
    pruner.load_configure(write("torchForKeras: [{sparsity: 0.1}]\ntfForKeras: [{sparsity: 0.2}]"))
    assert pruner.config_list == [{"sparsity": 0.2}]
    with pytest.raises(ConfigError, match="'torchForKeras' is for another framework than keras"):
        ForKeras().load_configure(write("torchForKeras: [{sparsity: 0.1}]"))


def test_the_model_decides_between_the_sections_of_a_file(write, monkeypatch, tmp_path):
    pruner = AGPPruner()
    monkeypatch.chdir(tmp_path)
    pruner.load_configure(write(TF + TORCH).name)
    monkeypatch.chdir("/")
    pruner.compress(nn.Linear(4, 4))
    assert pruner.get_modules_wrapper()[0].config["final_sparsity"] == 0.5


def test_a_file_without_a_section_for_any_framework_is_refused_at_once(write):
    with pytest.raises(ConfigError, match="expected a section named 'AGPPruner'"):
        AGPPruner().load_configure(write("tfLevelPruner: [{sparsity: 0.5}]"))


@pytest.mark.parametrize(
    "first",
    [[{"final_sparsity": 0.1}], {"final_sparsity": 0.1}, ({"final_sparsity": 0.1},)],
    ids=["list", "one rule", "tuple"],
)
def test_a_file_is_appended_to_the_list_that_was_given(write, first):
    pruner = AGPPruner(first)
    pruner.load_configure(write(TORCH))
    assert [rule["final_sparsity"] for rule in pruner.config_list] == [0.1, 0.5]


def test_a_second_file_is_appended_to_the_first(write):
    pruner = AGPPruner()
    pruner.load_configure(write(TORCH, "one.yaml"))
    pruner.load_configure(write(BOTH, "two.yaml"))
    assert [rule["final_sparsity"] for rule in pruner.config_list] == [0.5, 0.5]
    assert pruner.compress(nn.Linear(4, 4)) is pruner.bound_model


def test_a_second_file_has_to_be_for_the_framework_of_the_first(write):
    pruner = AGPPruner()
    pruner.load_configure(write(TF, "one.yaml"))
    pruner.load_configure(write(BOTH, "two.yaml"))
    assert [rule["final_sparsity"] for rule in pruner.config_list] == [0.6, 0.5]
    pruner = AGPPruner()
    pruner.load_configure(write(TF, "one.yaml"))
    with pytest.raises(ConfigError, match="'torchAGPruner' is for another framework than keras"):
        pruner.load_configure(write(TORCH, "two.yaml"))


def test_two_sections_beside_a_list_are_refused(write):
    pruner = AGPPruner([{"final_sparsity": 0.1}])
    with pytest.raises(ConfigError, match="has a section for each of torch, keras"):
        pruner.load_configure(write(TF + TORCH))
    assert pruner.config_list == [{"final_sparsity": 0.1}]
