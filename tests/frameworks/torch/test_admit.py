import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from lilliput.errors import ExportError, UnsupportedModelError
from lilliput.torch import LevelPruner, NaiveQuantizer, strip

HALF = [{"op_types": ["Linear"], "sparsity": 0.5}]


def old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(nn.Linear(4, 4))


def pruned_by_torch():
    layer = nn.Linear(4, 4)
    prune.random_unstructured(layer, "weight", 0.5)
    return layer


def expanded():
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.ones(1, 4).expand(4, 4))
    return layer


def on_meta():
    return nn.Linear(4, 4, device="meta")


def with_our_name():
    layer = nn.Linear(4, 4)
    layer.lilliput = nn.Linear(2, 2)
    return layer


def made_for_inference():
    with torch.inference_mode():
        return nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (old_weight_norm, "weight_norm"),
        (pruned_by_torch, "prune"),
        (expanded, "expanded"),
        (on_meta, "meta device"),
        (with_our_name, "submodule called 'lilliput'"),
        (made_for_inference, "inference mode"),
    ],
)
def test_layers_that_cannot_be_exact_are_refused_by_name_before_anything_changes(make, words):
    model = nn.Sequential(make())
    keys = list(model.state_dict())
    with pytest.raises(UnsupportedModelError, match=f"layer '0.*{words}"):
        LevelPruner(model, [{"op_names": ["*"], "op_types": ["Linear"], "sparsity": 0.5}])
    assert list(model.state_dict()) == keys


def test_weights_that_share_memory_by_a_view_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    with pytest.raises(UnsupportedModelError, match="shares memory with '0'"):
        LevelPruner(model, HALF)


def test_a_model_on_the_meta_device_is_refused_for_that_reason():
    model = nn.Sequential(*(nn.Linear(4, 4, device="meta") for _ in range(2)))
    with pytest.raises(UnsupportedModelError, match="layer '0' .* on the meta device"):
        LevelPruner(model, HALF)


@pytest.mark.parametrize(
    "wrap", [lambda m: LevelPruner(m, HALF), lambda m: NaiveQuantizer(m, [{}])]
)
def test_looking_at_a_spectral_norm_leaves_its_vectors_alone(wrap):
    layers = [nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)) for _ in range(5)]
    model = nn.Sequential(*layers).train()
    before = copy.deepcopy(model.state_dict())
    try:
        assert len(wrap(model).get_wrappers()) == 5  # equal shapes are not taken for tied weights
    except UnsupportedModelError as error:
        assert "layer '0'" in str(error)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_scripted_modules_are_refused():
    with pytest.warns(DeprecationWarning):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(UnsupportedModelError, match="ScriptModule"):
        LevelPruner(scripted, HALF)


def test_a_class_that_copies_itself_refuses_to_be_copied_while_compressed():
    class Own(nn.Linear):
        def __deepcopy__(self, memo):
            return Own(self.in_features, self.out_features)

    model = nn.Sequential(Own(4, 4))
    pruner = LevelPruner(model, HALF)
    pruner.compress()
    with pytest.raises(UnsupportedModelError, match="would lose its masks"):
        copy.deepcopy(model)
    pruner.strip()
    copy.deepcopy(model)


def test_a_class_that_cannot_be_subclassed_is_refused_and_left_as_it_was():
    class Final(type):
        def __new__(mcs, name, bases, members):
            if any(isinstance(base, Final) for base in bases):
                raise LookupError("is final")
            return super().__new__(mcs, name, bases, members)

    class Picky(nn.Linear, metaclass=Final):
        pass

    model = nn.Sequential(nn.Linear(4, 4), Picky(4, 4))
    keys = list(model.state_dict())
    with pytest.raises(UnsupportedModelError, match="layer '1': its class Picky"):
        LevelPruner(model, HALF).compress()
    assert list(model.state_dict()) == keys and type(model[0]) is nn.Linear


def test_a_checkpoint_with_something_else_than_a_mask_is_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    LevelPruner(model, HALF).compress()
    state = model.state_dict()
    state["0.lilliput.0.weight_mask"] = torch.full((4, 4), 0.5)
    with pytest.raises(RuntimeError, match="weight_mask: received values other than 0 and 1"):
        model.load_state_dict(state)


def test_a_parametrized_layer_cannot_be_exported_as_if_it_were_plain(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4))
    nn.utils.parametrizations.weight_norm(model[0])
    quantizer = NaiveQuantizer(model, [{"quant_bits": 3}])
    quantizer.compress()
    with pytest.raises(ExportError, match="'0.weight' is computed by a parametrization"):
        quantizer.export_model(str(tmp_path / "m.pth"))


def test_a_submodule_called_lilliput_is_exported(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.lilliput = nn.Linear(2, 2), nn.Linear(2, 2)

    pruner = LevelPruner(Net(), HALF)
    pruner.compress()
    pruner.export_model(str(tmp_path / "m.pth"))
    keys = list(torch.load(tmp_path / "m.pth", weights_only=True))
    assert keys == ["a.weight", "a.bias", "lilliput.weight", "lilliput.bias"]


def test_a_copy_that_nobody_knows_of_can_be_stripped():
    model = nn.Sequential(nn.Linear(8, 8))
    LevelPruner(model, HALF).compress()
    NaiveQuantizer(model, [{"quant_bits": 4}]).compress()
    teacher = strip(copy.deepcopy(model))
    assert type(teacher[0]) is nn.Linear and list(teacher.state_dict()) == ["0.weight", "0.bias"]
    assert int((teacher[0].weight == 0).sum()) == 32
    assert type(model[0]) is not nn.Linear
