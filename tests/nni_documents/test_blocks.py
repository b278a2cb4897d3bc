"""The code of the v1 and v2 documents on writing one's own algorithm runs as printed, and works.

The documents leave the algorithm itself to the reader: ``return {'weight_mask': mask}``. Such a name
is given as a global where the printed method uses one; where the block assigns ``...`` to it, a
subclass overrides that method with the printed signature.
"""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import AlgorithmError

BLOCKS = Path(__file__).parent / "blocks"
# The 2019 document has a list without a comma and functions without a body.
NOT_PYTHON = {
    "003_3_config_list.py",
    "003_5_tf_your_pruner.py",
    "003_6_torch_your_pruner.py",
    "003_7_tf_your_quantizer.py",
    "003_8_torch_your_quantizer.py",
    "003_9_preprocess_model.py",
}
DOCUMENTS = {"000": "nni.compression.torch", "001": "nni.compression.pytorch"}
LINEAR = [{"sparsity": 0.5, "op_types": ["Linear"]}]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


@pytest.fixture(params=DOCUMENTS)
def pruning(request, run):
    """The masker and the pruner of a document, as printed, in one namespace."""
    namespace = {}
    exec(f"from {DOCUMENTS[request.param]} import Pruner, WeightMasker", namespace)
    namespace = run(f"{request.param}_1_my_masker.py", **namespace)
    return run(f"{request.param}_2_my_pruner.py", **namespace)


@pytest.mark.parametrize("file", sorted(BLOCKS.glob("*.py")), ids=lambda file: file.name)
def test_a_block_is_python_unless_listed(file):
    text = file.read_text(encoding="utf-8")
    if file.name in NOT_PYTHON:
        with pytest.raises(SyntaxError):
            compile(text, file.name, "exec")
    else:
        compile(text, file.name, "exec")


def test_the_printed_masker_and_pruner_hold_their_mask_through_training(run, train, raw, pruning):
    model = nn.Linear(6, 4)
    mask = (torch.rand(4, 6) > 0.5).float()
    # run() gave a copy of the globals on; the printed masker reads its own.
    pruning["MyMasker"].calc_mask.__globals__["mask"] = mask
    before, bias = raw(model).detach().clone(), model.bias.detach().clone()
    optimizer = sgd(model)
    pruner = pruning["MyPruner"](model, LINEAR, optimizer)
    assert pruner.compress() is model

    x = torch.randn(5, 6)
    assert torch.equal(model(x), F.linear(x, before * mask, bias))
    train(model, optimizer, 6)
    assert torch.equal(raw(model)[mask == 0], torch.zeros(int((mask == 0).sum())))
    assert torch.equal(raw(model).grad[mask == 0], torch.zeros(int((mask == 0).sum())))
    assert (raw(model) != before)[mask == 1].all()
    assert torch.equal(pruner.get_modules_wrapper()[0].weight_mask, mask)


def test_the_printed_pruner_calculates_each_mask_once(train, raw, pruning, model):
    calls = []

    class Masker(pruning["MyMasker"]):
        def calc_mask(self, sparsity, wrapper, wrapper_idx=None):
            calls.append((wrapper.name, sparsity, wrapper_idx))
            threshold = wrapper.weight.abs().quantile(sparsity)
            return {"weight_mask": (wrapper.weight.abs() > threshold).float()}

    pruning["MyPruner"].calc_mask.__globals__["MyMasker"] = Masker
    optimizer = sgd(model)
    config = [{"sparsity": 0.75, "op_types": ["Conv2d"]}, {"exclude": True, "op_names": ["conv1"]}]
    pruner = pruning["MyPruner"](model, config, optimizer)
    pruner.compress()
    masks = {w.name: w.weight_mask.clone() for w in pruner.get_modules_wrapper()}
    train(model, optimizer, 1, 8, 8)

    assert calls == [("conv2", 0.75, 0), ("conv3", 0.75, 1)]
    for name, mask in masks.items():
        layer = model.get_submodule(name)
        assert int(mask.sum()) == mask.numel() // 4
        assert torch.equal(raw(layer) != 0, mask.bool())
        assert not raw(layer).grad[mask == 0].any()
        assert raw(layer).grad[mask == 1].any()
    assert (raw(model.conv1) != 0).all()


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("target", ["weight", "input", "output"])
def test_the_printed_quantizer_puts_in_force_what_its_methods_return(run, raw, document, target):
    model, x = nn.Linear(6, 4), torch.randn(5, 6, requires_grad=True)
    new = {"weight": torch.randn(4, 6), "input": torch.randn(5, 6), "output": torch.randn(5, 4)}
    namespace = run(
        f"{document}_3_your_quantizer.py", **{f"new_{key}": value for key, value in new.items()}
    )
    quantizer = namespace["YourQuantizer"](model, [{"quant_types": [target]}])
    quantizer.compress()
    expected = {
        "weight": F.linear(x, new["weight"], model.bias),
        "input": F.linear(new["input"], raw(model), model.bias),
        "output": new["output"],
    }[target]
    output = model(x)
    assert torch.equal(output, expected)

    grad = torch.randn(5, 4)
    output.backward(grad)
    torch.testing.assert_close(raw(model).grad, grad.T @ (new["input"] if target == "input" else x))
    quantizer.update_epoch(0)
    quantizer.step()
    assert torch.equal(quantizer.strip()(x), F.linear(x, model.weight, model.bias))


@pytest.mark.parametrize(
    "block", ["000_3_your_quantizer.py", "001_3_your_quantizer.py", "002_1_your_quantizer.py"]
)
def test_quantize_methods_get_the_tensor_and_the_config_as_documented(run, train, raw, block):
    seen = {}

    class Mine(run(block)["YourQuantizer"]):
        def quantize_weight(self, weight, config, **kwargs):
            seen["weight"] = config
            return (weight * 2).round() / 2

        def quantize_output(self, output, config, **kwargs):
            seen["output"] = config
            return (output * 4).round() / 4

        def quantize_input(self, *inputs, config, **kwargs):
            seen["input"] = config
            assert len(inputs) == 2
            return tuple((x * 8).round() / 8 for x in inputs)

    model = nn.Bilinear(3, 3, 2)
    rule = {
        "quant_types": ["weight", "input", "output"],
        "quant_bits": {"weight": 4, "input": 8, "output": 8},
        "op_types": ["Bilinear"],
    }
    Mine(model, [rule]).compress()
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    expected = F.bilinear(
        (x * 8).round() / 8, (y * 8).round() / 8, (raw(model) * 2).round() / 2, model.bias
    )
    assert torch.equal(model(x, y), (expected * 4).round() / 4)
    assert seen.keys() == {"weight", "input", "output"}
    assert all(config.items() >= rule.items() for config in seen.values())

    before = raw(model).detach().clone()
    optimizer = sgd(model)
    model(x, y).sum().backward()
    optimizer.step()
    assert (raw(model) != before).all()


@pytest.mark.parametrize("mistake", ["the placeholder is still there", "an attribute is misspelt"])
def test_a_quantizer_that_fails_is_reported_and_not_left_out(run, mistake):
    class Misspelt(run("002_1_your_quantizer.py")["YourQuantizer"]):
        def quantize_weight(self, weight, config, **kwargs):
            return weight * self.no_such_scale

    printed = run("002_1_your_quantizer.py")["YourQuantizer"]
    model = nn.Linear(6, 4)
    with pytest.raises(AlgorithmError):
        cls = printed if mistake.startswith("the placeholder") else Misspelt
        cls(model, [{"quant_types": ["weight"]}]).compress()
        model(torch.randn(5, 6))


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ("000_4_clip_grad.py", "YourQuantizer"),
        ("001_4_clip_grad.py", "YourQuantizer"),
        ("002_2_clip_grad.py", "_YourQuantizer"),
    ],
)
def test_clip_grad_zeroes_exactly_the_gradient_of_large_outputs(run, raw, block, name):
    class Mine(run(block, torch=torch)[name]):
        def quantize_weight(self, weight, config, **kwargs):
            return weight * 0.5

        def quantize_output(self, output, config, **kwargs):
            return output * 0.01

    model = nn.Linear(6, 4)
    with torch.no_grad():
        model.weight.mul_(8)
    Mine(model, [{"quant_types": ["weight", "output"]}]).compress()
    x = torch.randn(20, 6, requires_grad=True)
    plain = F.linear(x, raw(model) * 0.5, model.bias).detach()
    small = (plain.abs() <= 1).float()
    assert 0 < small.mean() < 1
    assert (raw(model).abs() > 1).any()

    output = model(x)
    output.retain_grad()
    assert torch.equal(output, plain * 0.01)
    grad = torch.randn(20, 4)
    given = grad.clone()
    output.backward(grad)

    assert torch.equal(output.grad, given)
    assert torch.equal(grad, given)
    torch.testing.assert_close(model.bias.grad, (given * small).sum(0))
    torch.testing.assert_close(raw(model).grad, (given * small).T @ x)
    torch.testing.assert_close(x.grad, (given * small) @ (raw(model) * 0.5))
