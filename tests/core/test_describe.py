import pytest
from torch import nn

import lilliput.torch as lt
from lilliput.algorithms import list_pruners, list_quantizers, pruner, quantizer


def make_model():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Linear(4, 2))


def test_a_pruner_is_a_line_with_layers_goal_and_stage():
    pruner = lt.LevelPruner(make_model(), [{"sparsity": 0.5}])
    head = "LevelPruner(2 layers: Conv2d ×1, Linear ×1; sparsity 0.5; "
    assert repr(pruner) == head + "not compressed yet)"
    pruner.compress()
    assert repr(pruner) == head + "compressed)"
    pruner.strip()
    assert repr(pruner) == head + "stripped)"
    assert repr(lt.LevelPruner(config_list=[{"sparsity": 0.5}])) == "LevelPruner(no model yet)"


def test_a_quantizer_is_a_line_with_its_bits():
    rules = [{"op_types": ["Linear"], "quant_bits": {"weight": 4, "input": 8}}]
    quantizer = lt.QATQuantizer(make_model(), rules)
    expected = "QATQuantizer(1 layer: Linear ×1; 4-bit weight; 8-bit input; not compressed yet)"
    assert repr(quantizer) == expected


def test_a_notebook_shows_a_table_with_a_row_per_layer_and_its_zeros():
    model = make_model()
    model._modules["<b>"] = nn.Linear(2, 2)
    pruner = lt.LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    html = pruner._repr_html_()
    assert html.count("<tr>") == 4 and html.count("50.0%") == 3
    assert "<b>Level" in html and '<td style="text-align:left">&lt;b&gt;</td>' in html


NEEDED = {"movement": {"cool_down_beginning_step": 9}, "rigl": {"training_steps": 9}}  # arguments


@pytest.mark.parametrize("name", [*list_pruners(), *list_quantizers()])
def test_every_algorithm_can_be_shown(name):
    find = pruner if name in list_pruners() else quantizer
    cls = find(name)
    rules = [{"quant_bits": 1} if "bnn" in name.lower() else {}] if find is quantizer else None
    if find is pruner:
        rules = [{"op_types": ["Conv2d", "Linear"], "exclude": True}, {"op_types": ["Conv2d"]}]
        key = "final_sparsity" if "final_sparsity" in cls.rule.model_fields else "sparsity"
        rules[1] |= {key: 0.5} if key in cls.rule.model_fields else {}
    made = cls(config_list=rules, **NEEDED.get(name, {}))
    assert repr(made).startswith(cls.__name__) and "<table>" in made._repr_html_()
    assert len(repr(made)) < 200


def test_layers_wrappers_and_states_are_short():
    pruner = lt.LevelPruner(make_model(), [{"sparsity": 0.5}])
    model = pruner.compress()
    wrapper = pruner.get_wrappers()[0]
    text = "LayerInfo('0', Conv2d, 4×1×3×3, {'sparsity': 0.5})"
    assert repr(wrapper.layer_info) == text
    assert repr(wrapper) == f"PrunerModuleWrapper({text})"
    assert repr(pruner.state()) == "CompressionState(LevelPruner, torch: 2 layers, 2 tensors)"
    assert len(str(model).splitlines()) < 20
