"""Names that compressors have through NNI's paths only, and the form of 2019."""

import copy

import pytest
import torch
from torch import nn

import lilliput.torch
from lilliput.compat.nni import install, uninstall
from lilliput.errors import StageError, UnsupportedModelError

RULES = [{"op_types": ["Linear"], "sparsity": 0.5}]
OLDER = [
    *("modules_wrapper", "get_modules_to_compress", "select_config", "load_configure", "reset"),
    *("load_model_state_dict", "compress_default_graph", "step_with_optimizer", "__call__"),
]


@pytest.fixture(autouse=True)
def nni():
    install()
    import nni

    yield nni
    uninstall()


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


def test_they_come_through_the_shim_and_no_other_way(nni):
    paths = (nni.compression.torch, nni.compression.pytorch.pruning, nni.compression.tensorflow)
    for name in OLDER:
        for path in paths:
            assert any(name in vars(cls) for cls in path.LevelPruner.__mro__), name
        assert not any(name in vars(cls) for cls in lilliput.torch.LevelPruner.__mro__), name


def test_the_config_list_may_come_first_and_the_model_when_it_is_called(nni):
    model, other = make_model(), make_model()
    assert nni.compressors.torchCompressor.LevelPruner(RULES)(model) is model
    assert lilliput.torch.LevelPruner(config_list=RULES).compress(other) is other
    assert torch.equal(model[0].weight, other[0].weight)
    with pytest.raises(UnsupportedModelError):
        lilliput.torch.LevelPruner(RULES)


def test_load_configure_appends_the_section_of_the_class(nni, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("LevelPruner:\n  config:\n    - {op_types: [Linear], sparsity: 0.5}\n")
    pruner = nni.compression.torch.LevelPruner([{"op_types": ["Linear"], "sparsity": 0.2}])
    pruner.load_configure(path)
    model = pruner(make_model())
    assert int((model[0].weight == 0).sum()) == 15
    with pytest.raises(StageError, match="before"):
        pruner.load_configure(path)


def test_the_form_of_2019_reads_a_yaml_section(nni, tmp_path):
    path = tmp_path / "prune.yaml"
    path.write_text(
        "AGPruner:\n  config:\n    - {start_epoch: 0, end_epoch: 4, frequency: 2, "
        "initial_sparsity: 0.05, final_sparsity: 0.60, support_type: default}\n"
    )
    pruner = nni.compressors.torchCompressor.AGPruner([])
    pruner.load_configure(path)
    model = pruner(nn.Linear(10, 10))
    counts = []
    for epoch in range(6):
        pruner.update_epoch(epoch)
        counts.append(int((model.weight == 0).sum()))
    assert counts == [5, 5, 53, 53, 60, 60]


def test_reset_loads_a_checkpoint_and_starts_with_fresh_masks(nni):
    model = make_model()
    checkpoint = copy.deepcopy(model.state_dict())
    pruner = nni.compression.torch.LevelPruner(model, RULES)
    pruner.compress()
    pruner.reset(checkpoint)
    assert torch.equal(model[0].weight, checkpoint["0.weight"])
    assert all(bool((w.weight_mask == 1).all()) for w in pruner.modules_wrapper)
    pruner.compress()
    assert int((model[0].weight == 0).sum()) == 15
    masks = [w.weight_mask.clone() for w in pruner.modules_wrapper]
    pruner.load_model_state_dict(checkpoint)
    assert torch.equal(model[0].weight, checkpoint["0.weight"] * masks[0])


def test_attributes_mean_what_they_meant(nni):
    model = make_model()
    pruner = nni.compression.torch.LevelPruner(model, RULES)
    assert pruner.bound_model is model and pruner.config_list == RULES and not pruner.is_wrapped
    layers = pruner.get_modules_to_compress()
    assert [
        (layer.name, layer.type, layer.module, config["sparsity"]) for layer, config in layers
    ] == [("0", "Linear", model[0], 0.5), ("2", "Linear", model[2], 0.5)]
    assert pruner.select_config(layers[0][0])["sparsity"] == 0.5
    pruner.compress()
    pruner._unwrap_model()
    assert not pruner.is_wrapped and type(model[0]) is nn.Linear
    pruner._wrap_model()
    assert pruner.is_wrapped


@pytest.mark.parametrize("when", ["before compress()", "after it"])
def test_what_step_with_optimizer_does_is_in_force_after_the_same_step(nni, when):
    class Late(nni.compression.torch.Pruner):
        count = 0
        log = ()

        def step(self):
            self.log += ("step",)

        def step_with_optimizer(self):
            self.log += ("step_with_optimizer",)
            self.count += 1

        def calc_mask(self, layer_info, weight):
            mask = torch.ones_like(weight)
            mask.flatten()[: self.count] = 0
            return mask

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Late(model, [{"op_types": ["Linear"]}], optimizer)
    if when == "after it":
        pruner.compress()
    optimizer.step()
    (wrapper,) = pruner.modules_wrapper
    assert int((wrapper.weight_mask == 0).sum()) == 1
    assert pruner.log == ("step", "step_with_optimizer")
    assert int((pruner.compress().weight == 0).sum()) == 1
