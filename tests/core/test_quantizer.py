import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, UnsupportedModelError
from lilliput.torch import LevelPruner, NaiveQuantizer, QuantGrad, Quantizer, QuantType


class Recording(Quantizer):
    """Rounds everything to tenths and notes what it was called with."""

    keeps_zero = True

    def __init__(self, model, config_list, optimizer=None):
        super().__init__(model, config_list, optimizer)
        self.calls = []

    def quantize_weight(self, weight, config, **kwargs):
        self.calls.append("weight")
        return (weight * 10).round() / 10

    def quantize_output(self, output, config, **kwargs):
        self.calls.append("output")
        return (output * 10).round() / 10

    def quantize_input(self, *inputs, config, **kwargs):
        self.calls.append("input")
        return tuple((x * 10).round() / 10 for x in inputs)


def rule(*quant_types, **more):
    return [{"quant_types": list(quant_types), "quant_bits": 8, **more}]


def tenths(tensor):
    return (tensor * 10).round() / 10


def test_weight_input_and_output_are_replaced_in_forward():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x, weight, bias = torch.randn(4, 3), model.weight.detach().clone(), model.bias.detach().clone()
    quantizer = Recording(model, rule("weight", "input", "output"))
    quantizer.compress()
    expected = tenths(nn.functional.linear(tenths(x), tenths(weight), bias))
    assert torch.equal(model(x), expected)
    assert quantizer.calls == ["input", "weight", "output"]


@pytest.mark.parametrize("quant_type", ["weight", "input", "output"])
def test_only_what_the_rule_names_is_quantized(quant_type):
    model = nn.Linear(3, 2)
    quantizer = Recording(model, rule(quant_type))
    quantizer.compress()
    model(torch.randn(1, 3))
    assert quantizer.calls == [quant_type]


def test_inputs_given_by_keyword_are_quantized_too():
    model = nn.Linear(3, 2)
    Recording(model, rule("input")).compress()
    x = torch.randn(4, 3)
    assert torch.equal(model(input=x), nn.functional.linear(tenths(x), model.weight, model.bias))


def test_layers_without_a_weight_have_their_output_quantized():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    Recording(model, rule("output", op_types=["ReLU"])).compress()
    x = torch.randn(4, 3)
    assert torch.equal(model(x), tenths(model[0](x).relu()))


def test_several_inputs_are_handed_over_together_and_must_all_come_back():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, a, b, flag):
            return (a + b) * self.weight

    class Loses(Recording):
        def quantize_input(self, *inputs, config, **kwargs):
            return inputs[0]

    a, b = torch.randn(2), torch.randn(2)
    model = Sum()
    Recording(model, rule("input", op_types=["Sum"])).compress()
    assert torch.equal(model(a, b, True), tenths(a) + tenths(b))
    model = Sum()
    Loses(model, rule("input", op_types=["Sum"])).compress()
    with pytest.raises(AlgorithmError, match=r"shapes \[\(2,\)\] for layer 'weight'"):
        model(a, b, True)


@pytest.mark.parametrize("as_apply", [False, True])
def test_a_quant_grad_acts_on_its_quant_type_only(as_apply):
    class ClipGrad(QuantGrad):
        @staticmethod
        def quant_backward(tensor, grad_output, quant_type):
            if quant_type == QuantType.OUTPUT:
                grad_output[torch.abs(tensor) > 1] = 0
            if quant_type == QuantType.WEIGHT:
                grad_output *= 2
            return grad_output

    class Clipping(Recording):
        def __init__(self, model, config_list):
            super().__init__(model, config_list)
            self.quant_grad = ClipGrad.apply if as_apply else ClipGrad

    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False)
    raw = model.weight
    Clipping(model, rule("weight", "output")).compress()
    x = torch.randn(16, 3)
    before_output_quantizer = nn.functional.linear(x, tenths(raw.detach()))
    upstream = torch.randn(16, 2)
    kept = upstream.clone()
    model(x).backward(upstream)
    clipped = torch.where(before_output_quantizer.abs() > 1, 0.0, upstream)
    assert 0 < int((clipped == 0).sum()) < clipped.numel()
    torch.testing.assert_close(raw.grad, 2 * clipped.T @ x)
    assert torch.equal(upstream, kept), "the gradient of others was edited"


def test_the_default_gradient_passes_straight_through():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    raw = model.weight
    Recording(model, rule("weight", "input", "output")).compress()
    x = torch.randn(4, 3, requires_grad=True)
    model(x).sum().backward()
    torch.testing.assert_close(raw.grad, tenths(x.detach()).sum(0).expand(2, 3))
    torch.testing.assert_close(x.grad, tenths(raw.detach()).sum(0).expand(4, 3))


def test_what_a_quantizer_cannot_do_is_a_config_error():
    with pytest.raises(ConfigError, match=r"NaiveQuantizer quantizes \['weight'\], not 'output'"):
        NaiveQuantizer(nn.Linear(2, 2), rule("weight", "output"))
    with pytest.raises(ConfigError, match=r"layer '0' \(ReLU\) has no weight"):
        Recording(nn.Sequential(nn.ReLU()), rule("weight", op_types=["ReLU"]))


def test_activations_of_a_layer_that_is_never_called_are_refused():
    attention = nn.Sequential(nn.MultiheadAttention(4, 2))
    with pytest.raises(ConfigError, match=r"layer '0.out_proj' is computed by its parent"):
        Recording(attention, rule("input", op_names=["0.out_proj"]))
    Recording(attention, rule("weight", op_names=["0.out_proj"])).compress()


def test_a_bad_quant_grad_is_refused_before_training():
    class Wrong(Recording):
        quant_grad = "STE"

    with pytest.raises(AlgorithmError, match="expected a subclass of QuantGrad"):
        Wrong(nn.Linear(2, 2), rule("weight")).compress()


def test_pruned_zeros_survive_a_quantizer_that_moves_zero():
    class Shifting(Quantizer):
        def quantize_weight(self, weight, wrapper, **kwargs):
            return weight.round() + 0.25

    model = nn.Linear(8, 8)
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    Shifting(model, rule("weight")).compress()
    mask = pruner.get_modules_wrapper()[0].weight_mask
    assert torch.equal(model.weight == 0, mask == 0)


def test_the_order_of_pruner_and_quantizer_does_not_matter():
    torch.manual_seed(0)
    one, two = nn.Linear(8, 8), nn.Linear(8, 8)
    two.load_state_dict(one.state_dict())
    LevelPruner(one, [{"sparsity": 0.5}]).compress()
    NaiveQuantizer(one, [{"quant_bits": 3}]).compress()
    NaiveQuantizer(two, [{"quant_bits": 3}]).compress()
    LevelPruner(two, [{"sparsity": 0.5}]).compress()
    assert torch.equal(one.weight, two.weight)
    assert len(one.weight.unique()) <= 7


@pytest.mark.parametrize("answer", ["pair", "reshaped"])
def test_a_quantizer_that_returns_something_else_is_refused_by_layer(answer):
    class Odd(Quantizer):
        def quantize_weight(self, weight, wrapper, **kwargs):
            return (weight, weight.max()) if answer == "pair" else weight.flatten()

    model = nn.Sequential(nn.Linear(2, 2))
    Odd(model, rule("weight")).compress()
    with pytest.raises(AlgorithmError, match="Odd.quantize_weight returned .* layer '0'"):
        model(torch.ones(1, 2))


def test_activations_of_a_layer_with_several_weights_are_quantized_once():
    model = nn.LSTM(3, 3)
    quantizer = Recording(model, rule("input", "output", op_types=["LSTM"]))
    quantizer.compress()
    model(torch.randn(2, 1, 3))
    assert quantizer.calls == ["input", "output"]
    quantizer.strip()
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.parametrize("quant_type", ["input", "output"])
def test_activations_that_cannot_be_found_are_refused_by_layer(quant_type):
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, index):
            return {"out": self.weight[index]}

    model = nn.Sequential(Lookup())
    Recording(model, rule(quant_type, op_types=["Lookup"])).compress()
    with pytest.raises(UnsupportedModelError, match=f"layer '0': its {quant_type} has no floating"):
        model(torch.tensor([1]))


def test_collectors_see_what_the_next_layer_sees():
    model = nn.Sequential(nn.Linear(3, 2))
    quantizer = Recording(model, rule("output", op_types=["Linear"]))
    seen = []
    quantizer.add_activation_collector(lambda wrapper, input_, output: seen.append(output))
    quantizer.compress()
    out = model(torch.randn(1, 3))
    assert torch.equal(seen[0], out)


def test_a_learned_parameter_gets_its_gradient_through_the_default_rule():
    class Learned(Quantizer):
        def __init__(self, model, config_list, optimizer):
            super().__init__(model, config_list, optimizer)
            self.set_wrappers_attribute("scale", nn.Parameter(torch.tensor(2.0)))

        def quantize_weight(self, weight, wrapper, **kwargs):
            return weight.round() * wrapper.scale

    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quantizer = Learned(model, rule("weight"), optimizer)
    quantizer.compress()
    (wrapper,) = quantizer.get_modules_wrapper()
    model(torch.ones(1, 2)).sum().backward()
    assert wrapper.scale.grad == 12.0  # d/ds of the sum of four weights of 3 · s
    assert torch.equal(wrapper.weight.grad, torch.ones(2, 2))  # straight through
    optimizer.step()
    assert wrapper.scale != 2.0
    quantizer.strip()
    assert len(optimizer.param_groups) == 1


def test_functional_transforms_see_the_straight_through_gradient():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    NaiveQuantizer(model, [{"quant_bits": 4}]).compress()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    x = torch.randn(5, 3)

    def loss(values):
        return torch.func.functional_call(model, values, (x,)).sum()

    gradient = torch.func.grad(loss)(parameters)["weight"]
    torch.testing.assert_close(gradient, x.sum(0).expand(2, 3))
    ones = {name: torch.ones_like(value) for name, value in parameters.items()}
    _, tangent = torch.func.jvp(loss, (parameters,), (ones,))
    torch.testing.assert_close(tangent, 2 * x.sum() + 10)
    torch.testing.assert_close(torch.func.vmap(model)(x), model(x))


@pytest.mark.parametrize("gradient", ["straight through", "its own"])
def test_quantize_weight_may_read_the_weight_off_the_module(gradient):
    class Mine(Quantizer):
        quant_grad = QuantGrad if gradient == "straight through" else None

        def quantize_weight(self, wrapper, **kwargs):
            return wrapper.module.weight * 0.5

    model, x, grad = nn.Linear(4, 3), torch.randn(5, 4), torch.randn(5, 3)
    quantizer = Mine(model, [{"quant_types": ["weight"]}])
    quantizer.compress()
    raw = model.get_parameter("weight")
    output = model(x)
    assert torch.equal(output, nn.functional.linear(x, raw * 0.5, model.bias))
    output.backward(grad)
    factor = 1.0 if gradient == "straight through" else 0.5
    torch.testing.assert_close(raw.grad, grad.T @ x * factor)


def test_a_quantizer_that_reads_the_weight_off_the_module_sees_its_masks():
    seen = []

    class Mine(Quantizer):
        def quantize_weight(self, weight, wrapper, **kwargs):
            seen.append(torch.equal(weight, wrapper.module.weight))
            return wrapper.module.weight

    model = nn.Linear(4, 4)
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    Mine(model, [{"quant_types": ["weight"]}]).compress()
    assert int((model.weight == 0).sum()) == 8
    assert seen == [True]
