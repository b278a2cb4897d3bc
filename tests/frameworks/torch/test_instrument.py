import copy
import io
import pickle

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from lilliput.errors import StageError, UnsupportedModelError
from lilliput.torch import LevelPruner, NaiveQuantizer, Pruner

HALF = [{"op_types": ["default"], "sparsity": 0.5}]


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2

    def right_inverse(self, weight):
        return weight / 2


def seeded(build):
    torch.manual_seed(0)
    return build()


def test_reading_the_attribute_from_outside_sees_the_masked_weight():
    layer = seeded(lambda: nn.Linear(4, 4))
    LevelPruner(layer, HALF).compress()
    x = torch.randn(2, 4)
    assert int((layer.weight == 0).sum()) == 8
    assert torch.equal(nn.functional.linear(x, layer.weight, layer.bias), layer(x))


def test_class_name_isinstance_repr_and_parameters_are_kept():
    layer = seeded(lambda: nn.Linear(4, 4))
    parameters = dict(layer.named_parameters())
    LevelPruner(layer, HALF).compress()
    assert type(layer).__name__ == "Linear" and isinstance(layer, nn.Linear)
    assert dict(layer.named_parameters()).keys() == parameters.keys()
    assert all(layer.get_parameter(k) is v for k, v in parameters.items())
    assert all(getattr(layer, k) is v for k, v in parameters.items())


def test_shadow_classes_are_shared_between_layers():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    LevelPruner(model, HALF).compress()
    assert type(model[0]) is type(model[1])


@pytest.mark.parametrize("cls", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_have_every_weight_masked(cls):
    layer = seeded(lambda: cls(5, 6, num_layers=2))
    pruner = LevelPruner(layer, HALF)
    pruner.compress()
    assert [w.name for w in pruner.get_modules_wrapper()] == [
        "weight_ih_l0",
        "weight_hh_l0",
        "weight_ih_l1",
        "weight_hh_l1",
    ]
    reference = cls(5, 6, num_layers=2)
    state = {k: v for k, v in layer.state_dict().items() if not k.startswith("lilliput")}
    reference.load_state_dict(state)
    x = torch.randn(3, 2, 5)
    out = layer(x)[0]
    torch.testing.assert_close(out, reference(x)[0], rtol=0, atol=0)
    out.sum().backward()
    for wrapper in pruner.get_modules_wrapper():
        assert bool((wrapper.weight.grad[wrapper.weight_mask == 0] == 0).all())
    duplicate = copy.deepcopy(layer)
    assert torch.equal(duplicate(x)[0], out)
    pruner.strip()
    assert type(layer) is cls and torch.equal(layer(x)[0], out)
    layer(x)[0].sum().backward()


def test_tied_weights_share_one_wrapper_and_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.embed(x))

    model = seeded(Tied)
    pruner = LevelPruner(model, HALF)
    assert [w.name for w in pruner.get_modules_wrapper()] == ["embed"]
    assert "embed (= out)" in pruner.explain()
    pruner.compress()
    assert torch.equal(model.embed.weight, model.out.weight)
    assert int((model.out.weight == 0).sum()) == 14
    duplicate = copy.deepcopy(model)
    x = torch.arange(7)
    assert torch.equal(duplicate(x), model(x))
    pruner.strip()
    assert model.out.weight is model.embed.weight


def test_a_rule_for_either_owner_takes_a_tied_weight():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    pruner = LevelPruner(model, [{"op_names": ["b"], "sparsity": 0.5}])
    assert [w.name for w in pruner.get_modules_wrapper()] == ["a"]


def test_a_parametrized_weight_is_masked_after_its_parametrization():
    layer = seeded(lambda: nn.Linear(4, 4))
    parametrize.register_parametrization(layer, "weight", Doubled())
    value = layer.weight.detach().clone()
    pruner = LevelPruner(layer, HALF)
    pruner.compress()
    mask = pruner.get_modules_wrapper()[0].weight_mask
    assert int((mask == 0).sum()) == 8
    assert torch.equal(layer.weight, value * mask)
    pruner.strip()
    assert torch.equal(layer.weight, value * mask)
    assert parametrize.is_parametrized(layer, "weight")


@pytest.mark.parametrize("parametrization", ["orthogonal", "weight_norm", "spectral_norm"])
def test_a_parametrization_that_cannot_hold_zeros_is_refused_before_pruning(parametrization):
    layer = seeded(lambda: nn.Linear(8, 8))
    getattr(parametrizations, parametrization)(layer)
    layer.eval()
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(UnsupportedModelError, match="layer 'weight'.*remove_parametrizations"):
        LevelPruner(layer, HALF)
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())
    NaiveQuantizer(layer, [{"quant_bits": 4}]).compress()
    assert len(layer.weight.unique()) <= 15


def test_a_new_parameter_is_masked_as_well():
    layer = seeded(lambda: nn.Linear(4, 4))
    pruner = LevelPruner(layer, HALF)
    pruner.compress()
    layer.weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(layer.weight, pruner.get_modules_wrapper()[0].weight_mask)


def test_a_pruned_model_pickles_and_masks_stay_in_force():
    model = nn.Sequential(seeded(lambda: nn.Linear(4, 4)))
    pruner = LevelPruner(model, HALF, torch.optim.SGD(model.parameters(), lr=0.1))
    pruner.add_activation_collector(lambda w, i, o: None)
    pruner.compress()
    clone = pickle.loads(pickle.dumps(model))
    x = torch.randn(2, 4)
    assert torch.equal(clone(x), model(x))
    with torch.no_grad():
        clone[0]._parameters["weight"].fill_(1.0)
    assert int((clone[0].weight == 0).sum()) == 8
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True).keys() == model.state_dict().keys()


def test_a_pickled_quantized_model_refuses_to_run_without_its_quantizer():
    model = nn.Sequential(nn.Linear(4, 4))
    NaiveQuantizer(model, [{"quant_bits": 4}]).compress()
    clone = pickle.loads(pickle.dumps(model))
    with pytest.raises(StageError, match="layer '0' was quantized by an algorithm"):
        clone(torch.randn(1, 4))


def test_a_deepcopy_is_independent_and_still_quantized():
    model = nn.Sequential(seeded(lambda: nn.Linear(4, 4)))
    NaiveQuantizer(model, [{"quant_bits": 2}]).compress()
    clone = copy.deepcopy(model)
    assert len(clone[0].weight.unique()) <= 3
    with torch.no_grad():
        clone[0]._parameters["weight"].mul_(2)
    assert not torch.equal(clone[0].weight, model[0].weight)


def test_second_pruning_reuses_the_instrument_and_strips_in_any_order():
    model = nn.Sequential(seeded(lambda: nn.Linear(8, 8)))
    first = LevelPruner(model, [{"sparsity": 0.25}])
    first.compress()
    second = LevelPruner(model, [{"sparsity": 0.5}])
    second.compress()
    assert int((model[0].weight == 0).sum()) == 32
    first.strip()
    assert int((model[0].weight == 0).sum()) == 32
    assert type(model[0]) is not nn.Linear
    second.strip()
    assert type(model[0]) is nn.Linear and list(model[0]._modules) == []
    assert int((model[0].weight == 0).sum()) == 32


def test_the_compiled_model_follows_mask_updates_without_recompiling():
    class Counting(Pruner):
        count = 1

        def calc_mask(self, layer_info, weight):
            mask = torch.ones_like(weight)
            mask.flatten()[: self.count] = 0
            return mask

    model = nn.Sequential(seeded(lambda: nn.Linear(4, 4)), nn.Tanh())
    pruner = Counting(model, [{"op_types": ["Linear"]}])
    pruner.compress()
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    x = torch.randn(3, 4)
    for count in (1, 5, 9):
        pruner.count = count
        pruner.step()
        model.zero_grad()
        compiled(x).sum().backward()
        grad = model[0]._parameters["weight"].grad.clone()
        model.zero_grad()
        model(x).sum().backward()
        torch.testing.assert_close(grad, model[0]._parameters["weight"].grad)
        torch.testing.assert_close(compiled(x), model(x))
        assert int((grad == 0).sum()) == count
    assert counter.frame_count == 1


def test_containers_with_weights_of_their_own_are_refused():
    class Odd(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(2, 2))
            self.weight = nn.Parameter(torch.ones(2, 2))

    model = Odd()
    with pytest.raises(UnsupportedModelError, match="is a Odd with its own weights"):
        LevelPruner(model, [{"op_types": ["Odd", "Linear"], "sparsity": 0.5}]).compress()
    assert type(model) is Odd and type(model[0]) is nn.Linear


def test_mixed_precision_casts_the_mask_along():
    layer = seeded(lambda: nn.Linear(4, 4))
    LevelPruner(layer, HALF).compress()
    layer._parameters["weight"] = nn.Parameter(layer._parameters["weight"].detach().bfloat16())
    assert layer.weight.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fresh = seeded(lambda: nn.Linear(4, 4))
        LevelPruner(fresh, HALF).compress()
        assert fresh(torch.randn(2, 4)).dtype == torch.bfloat16
