import copy

import pytest
import torch
from torch import nn

from lilliput.torch import (
    CompressionState,
    LevelPruner,
    LSQQuantizer,
    NaiveQuantizer,
    PrunerModuleWrapper,
    QATQuantizer,
    Quantizer,
    QuantizerModuleWrapper,
)

HALF = [{"op_types": ["Linear"], "sparsity": 0.5}]


def make_pruner():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pruner = LevelPruner(model, HALF)
    pruner.compress()
    return pruner


def test_a_wrapper_shows_what_the_documents_promise():
    pruner = make_pruner()
    wrapper = pruner.get_modules_wrapper()[1]
    assert isinstance(wrapper, PrunerModuleWrapper)
    assert wrapper.module is pruner.bound_model[1]
    assert (wrapper.name, wrapper.type, wrapper.config["sparsity"]) == ("1", "Linear", 0.5)
    assert wrapper.pruner is pruner
    assert wrapper.weight is wrapper.module._parameters["weight"]
    assert wrapper.bias is wrapper.module.bias
    x = torch.randn(2, 4)
    assert torch.equal(wrapper(x), wrapper.module(x))


def test_a_quantizer_wrapper_knows_its_quantizer():
    quantizer = NaiveQuantizer(nn.Linear(2, 2), [{"quant_bits": 4}])
    (wrapper,) = quantizer.get_modules_wrapper()
    assert isinstance(wrapper, QuantizerModuleWrapper) and wrapper.quantizer is quantizer


def test_masks_are_in_the_models_state_dict_and_move_with_it():
    model = make_pruner().bound_model
    assert list(model.state_dict()) == [
        *("0.weight", "0.bias", "0.lilliput.0.weight_mask"),
        *("1.weight", "1.bias", "1.lilliput.0.weight_mask"),
    ]
    model.double()
    assert model.state_dict()["0.lilliput.0.weight_mask"].dtype == torch.float64
    assert model(torch.randn(1, 4, dtype=torch.float64)).dtype == torch.float64


def test_an_uncompressed_checkpoint_loads_strictly_and_masks_stay():
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pruner = make_pruner()
    masks = [w.weight_mask.clone() for w in pruner.get_modules_wrapper()]
    pruner.bound_model.load_state_dict(plain.state_dict(), strict=True)
    for i, mask in enumerate(masks):
        assert torch.equal(pruner.bound_model[i].weight, plain[i].weight * mask)


def test_a_compressed_checkpoint_brings_its_masks_even_for_a_bias_that_had_none():
    source, target = make_pruner(), make_pruner()
    source.get_modules_wrapper()[0].set_masks({"bias_mask": torch.tensor([1.0, 0.0, 1.0, 0.0])})
    target.bound_model.load_state_dict(source.bound_model.state_dict(), strict=True)
    assert torch.equal(target.bound_model[0].bias, source.bound_model[0].bias)
    assert bool((target.bound_model[0].bias[1::2] == 0).all())


def test_masks_are_updated_in_place():
    pruner = make_pruner()
    wrapper = pruner.get_modules_wrapper()[0]
    buffer = wrapper.weight_mask
    wrapper.set_masks({"weight_mask": torch.zeros(4, 4)})
    assert wrapper.weight_mask is buffer and not bool(buffer.any())


@pytest.mark.parametrize(
    ("cls", "rule"),
    [(LevelPruner, {"sparsity": 0.5}), (QATQuantizer, {}), (LSQQuantizer, {"quant_bits": 4})],
)
def test_what_is_compressed_in_inference_mode_can_be_trained(cls, rule):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, 4)
    with torch.inference_mode():
        compressor = cls(model, [rule], optimizer)
        compressor.compress()
        model(x)
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
    assert not any(t.is_inference() for t in (*model.parameters(), *model.buffers()))
    compressor.strip()


def test_copies_of_a_model_do_not_copy_the_compressor():
    pruner = make_pruner()
    pruner.big = object()
    clone = copy.deepcopy(pruner.bound_model)
    wrapper = clone[0]._modules["lilliput"]._modules["0"]
    assert wrapper.pruner is pruner
    assert wrapper.module is clone[0]


def test_a_parameter_of_the_algorithm_is_trained_and_saved_with_the_model(tmp_path):
    class Scaled(Quantizer):
        quant_grad = None

        def __init__(self, model, config_list):
            super().__init__(model, config_list)
            self.set_wrappers_attribute("scale", nn.Parameter(torch.tensor(0.5)))

        def quantize_weight(self, weight, wrapper, **kwargs):
            return weight * wrapper.scale

    def make():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        quantizer = Scaled(model, [{"op_types": ["Linear"]}])
        quantizer.compress()
        return quantizer

    source = make()
    model = source.bound_model
    assert [name for name, _ in model.named_parameters() if "scale" in name] == [
        "0.lilliput.0.scale",
        "1.lilliput.0.scale",
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    first, second = (wrapper.scale.detach().clone() for wrapper in source.get_modules_wrapper())
    assert first != 0.5 and first != second
    source.state().save(tmp_path)
    target = make()
    target.load_state(CompressionState.load(tmp_path))
    assert [w.scale for w in target.get_modules_wrapper()] == [first, second]
    assert isinstance(target.get_modules_wrapper()[0].scale, nn.Parameter)
    source.strip()
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
