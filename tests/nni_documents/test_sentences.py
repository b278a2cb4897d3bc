"""What the five documents claim in words: one test per sentence, which it quotes as its docstring.

The code blocks are run by the other files of this folder. The number is that of the document: 000
and 001 (customize an algorithm, in English and in Chinese), 002 (the same, for v2), 003 (2019), 004
(the framework).
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.compat.nni.imports.finder import ShimModule

LINEAR = [{"sparsity": 0.5, "op_types": ["Linear"]}]


@pytest.fixture
def nni(shim):
    import nni

    assert isinstance(nni, ShimModule)
    return nni


@pytest.fixture
def sgd():
    return lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def halves(nni):
    class Halves(nni.compression.torch.Quantizer):
        def quantize_weight(self, weight, config, **kwargs):
            return (weight * 2).round() / 2

        def quantize_output(self, output, config, **kwargs):
            return (output * 2).round() / 2

        def quantize_input(self, *inputs, config, **kwargs):
            return (inputs[0] * 2).round() / 2

    return Halves


# -- 000, 001, 002: customize an algorithm -------------------------------------------------------------


def test_000_quantize_weight_returns_weights(nni, raw):
    """`quantize_weight` directly returns the quantized weights rather than mask."""
    model = nn.Linear(6, 4)
    halves(nni)(model, [{"quant_types": ["weight"]}]).compress()
    assert torch.equal(model.weight, (raw(model) * 2).round() / 2)


@pytest.mark.parametrize("target", ["weight", "input", "output"])
def test_000_hooked_to_forward(nni, raw, target):
    """Quote: this method is effectively hooked to :meth:`forward` of the model."""
    model = nn.Linear(6, 4)
    halves(nni)(model, [{"quant_types": [target]}]).compress()
    x, seen = torch.randn(5, 6), {"weight": raw(model), "input": None, "output": None}
    seen["input"] = x
    if target != "output":
        seen[target] = (seen[target] * 2).round() / 2
    expected = F.linear(seen["input"], seen["weight"], model.bias)
    expected = (expected * 2).round() / 2 if target == "output" else expected
    assert torch.equal(model(x), expected)
    with torch.no_grad():
        raw(model).add_(1)  # each forward asks again
    assert not torch.equal(model(x), expected)


def test_000_step_uses_the_bound_model(nni, sgd, train):
    """Can do some processing based on the model or weights binded in the func bind_model."""

    class Mine(nni.compression.torch.Quantizer):
        def bind_model(self, model):
            self.mine = model

        def quantize_weight(self, weight, config, **kwargs):
            return weight

        def step(self):
            with torch.no_grad():
                self.mine.bias.zero_()

    model = nn.Linear(6, 4)
    optimizer = sgd(model)
    Mine(model, [{"quant_types": ["weight"]}], optimizer).compress()
    train(model, optimizer, 6, steps=1)
    assert not model.bias.any()


def test_000_default_backward_is_straight_through(nni, raw):
    """If you do not customize `QuantGrad`, the default backward is Straight-Through Estimator."""
    model, x, grad = nn.Linear(6, 4), torch.randn(5, 6, requires_grad=True), torch.randn(5, 4)
    rule = {"quant_types": ["weight", "input", "output"]}
    halves(nni)(model, [rule]).compress()
    model(x).backward(grad)
    seen = (x * 2).round() / 2
    torch.testing.assert_close(raw(model).grad, grad.T @ seen.detach())
    torch.testing.assert_close(x.grad, grad @ ((raw(model) * 2).round() / 2))


def test_000_quant_type_tells_the_tensors_apart(nni, raw):
    """The type of quantization, it can be `QuantType.QUANT_INPUT`, `QuantType.QUANT_WEIGHT`,
    `QuantType.QUANT_OUTPUT`, you can define different behavior for different types.
    """
    from nni.compression.torch.compressor import QuantGrad, QuantType

    factors = {QuantType.QUANT_INPUT: 2, QuantType.QUANT_WEIGHT: 3, QuantType.QUANT_OUTPUT: 5}
    seen = {}

    class Scaled(QuantGrad):
        @staticmethod
        def quant_backward(tensor, grad_output, quant_type):
            seen[quant_type] = (tensor.detach(), grad_output.clone())
            return grad_output * factors[quant_type]

    class Mine(halves(nni)):
        def __init__(self, model, config_list):
            super().__init__(model, config_list)
            self.quant_grad = Scaled

    model, x, grad = nn.Linear(6, 4), torch.randn(5, 6, requires_grad=True), torch.randn(5, 4)
    Mine(model, [{"quant_types": ["weight", "input", "output"]}]).compress()
    model(x).backward(grad)
    low, weight = (x * 2).round() / 2, (raw(model) * 2).round() / 2
    torch.testing.assert_close(raw(model).grad, (grad * 5).T @ low.detach() * 3)
    torch.testing.assert_close(x.grad, (grad * 5) @ weight.detach() * 2)
    # tensor: input of quantization operation; grad_output: gradient of the output of it
    assert torch.equal(seen[QuantType.QUANT_INPUT][0], x)
    assert torch.equal(seen[QuantType.QUANT_WEIGHT][0], raw(model))
    torch.testing.assert_close(seen[QuantType.QUANT_OUTPUT][0], F.linear(low, weight, model.bias))
    assert torch.equal(seen[QuantType.QUANT_OUTPUT][1], grad)


def test_002_quant_types_have_both_spellings(nni):
    """`QuantType.INPUT`, `QuantType.WEIGHT`, `QuantType.OUTPUT` (v2), `QUANT_INPUT` … (v1)."""
    from nni.compression.pytorch.compressor import QuantType

    for name in ("INPUT", "WEIGHT", "OUTPUT"):
        assert getattr(QuantType, name) is getattr(QuantType, f"QUANT_{name}")


# -- 003: 2019 -------------------------------------------------------------------------------------------


def test_003_the_designer_does_not_apply_the_mask(nni, raw):
    """He only need to pay attention to the generation method of mask, without caring about applying
    the mask to the garph.
    """
    mask = (torch.rand(4, 6) > 0.5).float()

    class Mine(nni.compressors.torchCompressor.TorchPruner):
        def calc_mask(self, layer_info, weight):
            return mask

    model, x = nn.Linear(6, 4), torch.randn(5, 6)
    before = model.weight.detach().clone()
    Mine()(model)
    assert torch.equal(model(x), F.linear(x, before * mask, model.bias))


@pytest.mark.parametrize(
    "name", ["AGPruner", "SensitivityPruner", "QATquantizer", "DoReFaQuantizer"]
)
@pytest.mark.parametrize("module", ["torchCompressor", "tfCompressor"])
def test_003_the_listed_algorithms_are_there(nni, module, name):
    """Below is a list of model compression algorithms supported in our compressor."""
    assert isinstance(getattr(getattr(nni.compressors, module), name), type)


def test_003_80_percent_of_all_weight(nni, raw, model):
    """If you want to prune all weight to 80% sparsity, you can add code below into your code before
    your training code.
    """
    nni.compressors.torchCompressor.LevelPruner([{"sparsity": 0.8, "support_type": "default"}])(
        model
    )
    for layer in (model.conv1, model.conv2, model.conv3, model.fc):
        assert int((raw(layer) == 0).sum()) == round(0.8 * raw(layer).numel())


def test_003_the_training_code_does_not_change(nni, sgd, train, model):
    """Our compressor will automatically insert mask into your model, and you can train your model
    with masks without changing your training code. You will get a compressed model when you finish
    your training.
    """
    optimizer = sgd(model)
    pruner = nni.compressors.torchCompressor.LevelPruner(
        [{"sparsity": 0.8, "support_type": "default"}]
    )
    pruner(model)
    zero = model.fc.weight == 0
    train(model, optimizer, 1, 8, 8)  # nobody calls the pruner
    x = torch.randn(3, 32)
    trained = dict(model.fc.named_parameters())["weight"].detach()
    assert torch.equal(model.fc(x), F.linear(x, trained * ~zero, model.fc.bias))
    assert torch.equal(model.fc.weight == 0, zero)


@pytest.mark.parametrize("way", ["init", "load_configure"])
def test_003_configure_by_init_or_load_configure(nni, tmp_path, model, way):
    """User can set configure in his code or a yaml file. And pass configure to compressor by init()
    or load_configure().
    """
    LevelPruner = nni.compressors.torchCompressor.LevelPruner
    rules = [{"sparsity": 0.25, "support_op": ["fc"]}]
    if way == "init":
        pruner = LevelPruner(rules)
    else:
        file = tmp_path / "rules.yaml"
        file.write_text(
            "LevelPruner:\n  config:\n    -\n      sparsity: 0.25\n      support_op: [fc]\n"
        )
        pruner = LevelPruner()
        pruner.load_configure(file)
    pruner(model)
    assert int((model.fc.weight == 0).sum()) == 24
    assert (model.conv1.weight != 0).all()


def test_003_a_quantizer_replaces_the_weight(nni, raw):
    """If you want to generate new weight and replace the old one, you are suggested to use Quantizer
    as base class.
    """

    class Mine(nni.compressors.torchCompressor.TorchQuantizer):
        def quantize_weight(self, layer_info, weight):
            return weight.sign()

    model = nn.Linear(6, 4)
    before = raw(model).detach().clone()
    Mine()(model)
    assert torch.equal(model.weight, before.sign())


def test_003_masks_that_change_every_step_or_epoch(nni):
    """If an designer wants to update mask every step, designer can implement step() or update_epoch()
    method in his code, and tell user to call when use it.
    """

    class Mine(nni.compressors.torchCompressor.TorchPruner):
        kept = 3

        def calc_mask(self, layer_info, weight):
            mask = torch.zeros_like(weight)
            mask[:, : self.kept] = 1
            return mask

        def step(self):
            self.kept -= 1

        def update_epoch(self, epoch):
            self.kept = 6 - epoch

    model = nn.Linear(6, 4)
    pruner = Mine()
    pruner(model)
    mask = pruner.get_modules_wrapper()[0].weight_mask
    counts = [int(mask.sum())]
    for call in (pruner.step, pruner.step, lambda: pruner.update_epoch(2)):
        call()
        counts.append(int(mask.sum()))
    assert counts == [12, 8, 4, 16]


# -- 004: the framework ------------------------------------------------------------------------------------


def test_004_one_base_class(nni):
    """Compressor is the base class for pruner and quntizer, it provides a unified interface."""
    from nni.compression.torch.compressor import Compressor, Pruner, Quantizer

    assert issubclass(Pruner, Compressor)
    assert issubclass(Quantizer, Compressor)
    for name in ("compress", "get_modules_wrapper", "set_wrappers_attribute", "export_model"):
        assert callable(getattr(Compressor, name))


def test_004_pruned_during_training(nni, sgd, train, raw, model):
    """Model is ready for pruning, now start finetune the model, the model will be pruned during
    training automatically.
    """
    optimizer = sgd(model)
    config = [{"sparsity": 0.7, "op_types": ["Conv2d", "Linear"]}]
    nni.compression.torch.LevelPruner(model, config, optimizer).compress()
    train(model, optimizer, 1, 8, 8)
    for layer in (model.conv1, model.conv2, model.conv3, model.fc):
        assert int((raw(layer) == 0).sum()) == round(0.7 * raw(layer).numel())


def test_004_attributes_are_buffers_of_the_wrapper(nni, model):
    """Users can use `set_wrappers_attribute` API to register attribute just like how buffers are
    registered in PyTorch modules. These buffers will be registered to `module wrapper`.
    """
    pruner = nni.compression.torch.LevelPruner(model, LINEAR)
    keys = list(model.state_dict())
    pruner.set_wrappers_attribute("seen", torch.ones(2))
    (wrapper,) = pruner.get_modules_wrapper()
    assert torch.equal(dict(wrapper.named_buffers())["seen"], torch.ones(2))
    assert list(model.state_dict()) == keys


def test_004_a_flag_says_that_the_mask_is_calculated(nni, model):
    """We use `set_wrappers_attribute` to set a buffer `if_calculated` which is used as flag
    indicating if the mask of a layer is already calculated.
    """
    pruner = nni.compression.torch.LevelPruner(model, LINEAR)
    (wrapper,) = pruner.get_modules_wrapper()
    assert not wrapper.if_calculated
    pruner.compress()
    assert wrapper.if_calculated


def test_004_a_collector_runs_at_each_forward(nni, model):
    """The collector function will be called each time the forward method runs."""
    pruner = nni.compression.torch.LevelPruner(model, LINEAR)
    seen = []
    collector_id = pruner.add_activation_collector(
        lambda wrapper, input_, output: seen.append((wrapper.name, output.shape))
    )
    for count in (1, 2):
        model(torch.randn(5, 1, 8, 8))
        assert seen == [("fc", (5, 3))] * count
    pruner.compress()
    model(torch.randn(5, 1, 8, 8))
    assert len(seen) == 3
    # Users can also remove this collector
    pruner.remove_activation_collector(collector_id)
    model(torch.randn(5, 1, 8, 8))
    assert len(seen) == 3


def test_004_a_hook_on_the_step_of_the_optimizer(nni, sgd, train, model):
    """It prunes the model per the `config_list` during training loop by adding a hook on
    `optimizer.step()`.
    """
    calls = []

    class Mine(nni.compression.torch.Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            calls.append((wrapper.name, wrapper_idx))
            mask = torch.ones_like(wrapper.weight)
            mask[: len(calls)] = 0
            return {"weight_mask": mask}

    optimizer = sgd(model)
    Mine(model, LINEAR, optimizer).compress()
    train(model, optimizer, 1, 8, 8, steps=1)
    assert calls == [("fc", 0), ("fc", 0)]
    assert torch.equal((model.fc.weight == 0).all(1), torch.tensor([True, True, False]))


def test_004_a_masker_prunes_a_layer_to_a_sparsity(nni, model):
    """A `weight masker` is the implementation of pruning algorithms, it can prune a specified layer
    wrapped by `module wrapper` with specified sparsity.
    """
    pruner = nni.compression.torch.L1FilterPruner(
        model, [{"op_types": ["Conv2d"], "sparsity": 0.5}]
    )
    wrapper = pruner.get_modules_wrapper()[2]
    mask = pruner.masker.calc_mask(sparsity=0.25, wrapper=wrapper)["weight_mask"]
    smallest = wrapper.weight.detach().abs().sum((1, 2, 3)).argsort()[:2].sort().values
    pruned = (torch.as_tensor(mask) == 0).flatten(1).all(1).nonzero().flatten()
    assert torch.equal(pruned, smallest)


def test_004_the_wrapper_contains_module_buffers_and_forward(nni):
    """A `pruning module wrapper` is a module containing: 1. the origin module 2. some buffers used by
    `calc_mask` 3. a new forward method that applies masks before running the original forward method.
    """
    model, x = nn.Linear(6, 4), torch.randn(5, 6)
    pruner = nni.compression.torch.LevelPruner(model, LINEAR)
    before = model.weight.detach().clone()
    pruner.compress()
    (wrapper,) = pruner.get_modules_wrapper()
    assert isinstance(wrapper, nn.Module)
    assert wrapper.module is model
    assert "weight_mask" in dict(wrapper.named_buffers())
    assert torch.equal(wrapper(x), F.linear(x, before * wrapper.weight_mask, model.bias))


def test_004_the_original_modules_are_not_contaminated(nni):
    """These buffers should be registered in `module wrapper` so that the original modules are not
    contaminated.
    """
    model = nn.Linear(6, 4)
    pruner = nni.compression.torch.LevelPruner(model, LINEAR)
    pruner.set_wrappers_attribute("mine", torch.zeros(1))
    pruner.compress()
    assert model._buffers == {}
    assert list(model._parameters) == ["weight", "bias"]
    pruner.strip()
    assert list(model.state_dict()) == ["weight", "bias"]


def test_004_the_pruning_hook_is_there_when_the_pruner_is_constructed(nni, sgd, train):
    """A pruning hook is installed on a pruner when the pruner is constructed, it is used to call
    pruner's calc_mask method at `optimizer.step()` is invoked.
    """
    calls = []

    class Mine(nni.compression.torch.Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            calls.append(wrapper.name)

    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    optimizer = sgd(model)
    pruner = Mine(model, LINEAR, optimizer)  # never compressed
    train(model, optimizer, 6, steps=2)
    assert calls == ["0", "1"] * 2
    assert pruner.bound_model is model


@pytest.mark.parametrize("name", ["TaylorFOWeightFilterPruner", "ActivationMeanRankFilterPruner"])
def test_004_statistics_from_before_compress_count(nni, sgd, name):
    """The same sentence: construct, train a batch, `compress()` prunes."""
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 2))
    optimizer = sgd(model)
    config = [{"sparsity": 0.5, "op_types": ["Conv2d"]}]
    pruner = getattr(nni.compression.torch, name)(model, config, optimizer, statistics_batch_num=1)
    x = torch.randn(16, 1, 8, 8)
    hidden = model[0](x).relu().detach()
    model(x).square().mean().backward()
    weight = model[0].weight.detach().clone()
    taylor = (model[0].weight.grad * weight).square().sum((1, 2, 3))
    expected = taylor if name.startswith("Taylor") else hidden.mean((0, 2, 3))
    optimizer.step()
    pruner.compress()
    pruned = (model[0].weight == 0).flatten(1).all(1).nonzero().flatten()
    assert torch.equal(pruned, expected.argsort()[:3].sort().values)


def test_004_fewer_bits(nni, model):
    """It is used to compress models by reducing the number of bits required to represent weights or
    activations.
    """
    rule = {"quant_types": ["weight"], "quant_bits": {"weight": 2}, "op_types": ["Conv2d"]}
    nni.compression.torch.DoReFaQuantizer(model, [rule]).compress()
    for layer in (model.conv1, model.conv2, model.conv3):
        assert len(layer.weight.unique()) <= 4


def test_004_the_quantization_wrapper(nni, raw):
    """Each module/layer of the model to be quantized is wrapped by a quantization module wrapper, it
    provides a new `forward` method to quantize the original module's weight, input and output.
    """
    model, x = nn.Linear(6, 4), torch.randn(5, 6)
    quantizer = halves(nni)(model, [{"quant_types": ["weight", "input", "output"]}])
    quantizer.compress()
    (wrapper,) = quantizer.get_modules_wrapper()
    output = F.linear((x * 2).round() / 2, (raw(model) * 2).round() / 2, model.bias)
    assert torch.equal(wrapper(x), (output * 2).round() / 2)


def test_004_the_quantization_hook_is_there_when_the_quantizer_is_constructed(nni, sgd, train):
    """A quantization hook is installed on a quntizer when it is constructed, it is call at
    `optimizer.step()`.
    """
    calls = []

    class Mine(halves(nni)):
        def step(self):
            calls.append("step")

    model = nn.Linear(6, 4)
    optimizer = sgd(model)
    quantizer = Mine(model, [{"quant_types": ["weight"]}], optimizer)  # never compressed
    train(model, optimizer, 6, steps=2)
    assert calls == ["step"] * 2
    assert quantizer.bound_model is model


def test_004_masks_are_updated_in_place(nni, sgd, train):
    """If buffers and parameters are updated in the `forward` method, an `in-place` update is needed to
    ensure the update is effective. Since `calc_mask` is called in the `optimizer.step` method, it
    supports multi-GPU naturally.
    """

    class Mine(nni.compression.torch.Pruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            return {"weight_mask": (torch.rand_like(wrapper.weight) > 0.5).float()}

    model = nn.Linear(6, 4)
    optimizer = sgd(model)
    pruner = Mine(model, LINEAR, optimizer)
    pruner.compress()
    (wrapper,) = pruner.get_modules_wrapper()
    mask, before = wrapper.weight_mask, wrapper.weight_mask.clone()
    train(model, optimizer, 6, steps=1)
    assert wrapper.weight_mask is mask
    assert not torch.equal(mask, before)
