"""v3's config keys for quantization: what each target gets, against plain PyTorch."""

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.errors import ConfigError

BOTH = ["_input_", "weight"]


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


def quantized(rules, model, dummy_input=None):
    from nni.compression import TorchEvaluator
    from nni.compression.quantization import QATQuantizer

    def train(model, optimizer, step, schedulers, max_steps, max_epochs):
        model.train()
        model(x)
        optimizer.step()

    torch.manual_seed(1)
    x = torch.randn(16, *next(iter(model.parameters())).shape[1:2], *dummy_shape(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    evaluator = TorchEvaluator(train, optimizer, dummy_input=dummy_input)
    _, config = QATQuantizer(model, rules, evaluator).compress(1, None)
    return config, x


def dummy_shape(model):
    return (5, 5) if any(isinstance(m, nn.Conv2d) for m in model.modules()) else ()


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


def test_a_target_has_one_symmetric_int8_scale_unless_a_rule_says_otherwise():
    model = linear()
    weight = model[0].weight.detach().clone()
    rules = [{"op_names": ["0"], "target_names": BOTH, "quant_dtype": None}]
    rules[0]["target_settings"] = {"_input_": {"quant_dtype": "uint4", "quant_scheme": "affine"}}
    config, x = quantized(rules, model)
    torch.testing.assert_close(config["0"]["weight"]["scale"], weight.abs().max() / 127)
    entry = config["0"]["_input_0"]
    assert (entry["quant_dtype"], entry["quant_scheme"], entry["quant_bits"]) == (
        "uint4",
        "affine",
        4,
    )
    low, high = x.min(), x.max()
    torch.testing.assert_close(entry["scale"], (high - low) / 15)
    assert int(entry["zero_point"]) == int((-low / entry["scale"]).round())


@pytest.mark.parametrize("granularity", ["out_channel", "per_channel", [1, -1]])
def test_a_weight_has_a_scale_for_each_output_channel(granularity):
    model = linear()
    weight = model[0].weight.detach().clone()
    rule = {"op_names": ["0"], "target_names": ["weight"], "quant_dtype": "int8"}
    config, _ = quantized([{**rule, "granularity": granularity}], model)
    torch.testing.assert_close(config["0"]["weight"]["scale"], weight.abs().amax(1) / 127)


def test_blocks_of_inputs_share_a_scale():
    model = linear()
    blocks = model[0].weight.detach().reshape(6, 2, 4).abs().amax(2)
    rule = {"op_names": ["0"], "target_names": ["weight"], "quant_dtype": "int4"}
    config, _ = quantized([{**rule, "granularity": [1, 4]}], model)
    torch.testing.assert_close(config["0"]["weight"]["scale"], blocks / 7)


def test_rules_for_different_targets_of_one_layer_add_up(caplog):
    model = linear()
    rules = [
        {"op_types": ["Linear"], "quant_dtype": "int8", "target_names": ["_input_"]},
        {
            "op_types": ["Linear"],
            "quant_dtype": "int4",
            "target_names": ["weight"],
            "granularity": "out_channel",
        },
        {"op_names": ["2"], "quant_dtype": "int8", "target_names": ["weight"]},
        {"op_types": ["ReLU"], "quant_dtype": "uint8", "target_names": ["_output_"]},
    ]
    config, _ = quantized(rules, model)
    bits = {k: {t: e["quant_dtype"] for t, e in targets.items()} for k, targets in config.items()}
    assert bits == {
        "0": {"_input_0": "int8", "weight": "int4"},
        "1": {"_output_0": "uint8"},
        "2": {"_input_0": "int8", "weight": "int8"},
    }
    assert config["0"]["weight"]["scale"].shape == (6,)
    assert "rule 2 sets the weight of layer '2' again" in caplog.text


def test_a_layer_that_a_later_rule_excludes_is_left_alone():
    rules = [
        {"op_types": ["Linear"], "quant_dtype": "int8", "target_names": ["_input_"]},
        {"op_types": ["Linear"], "quant_dtype": "int8", "target_names": ["weight"]},
        {"op_names": ["2"], "exclude": True},
    ]
    config, _ = quantized(rules, linear())
    assert set(config) == {"0"}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.relu, self.other = nn.ReLU(), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.other(self.relu(self.bn(self.conv(x))))


FUSED = {"op_names": ["conv"], "target_names": ["weight", "_output_"], "quant_dtype": "int8"}


def test_fused_layers_are_quantized_after_norm_and_activation():
    model = Block()
    rule = {**FUSED, "fuse_names": [("conv", "bn", "relu")]}
    config, x = quantized([rule], model, torch.randn(2, 3, 5, 5))
    with torch.no_grad():
        weight = model.conv.weight  # as the layer sees it, on the grid of what is folded
        after = model.relu(model.bn(nn.functional.conv2d(x, weight, model.conv.bias)))
    entry = config["conv"]["_output_0"]
    assert float(entry["tracked_min"]) == 0.0  # behind the ReLU
    assert float(entry["tracked_max"]) > 0 and float(after.min()) == 0.0


def test_layers_that_cannot_be_fused_are_refused():
    with pytest.raises(ConfigError, match="what follows it in the model is 'bn'"):
        quantized([{**FUSED, "fuse_names": [("conv", "other")]}], Block(), torch.randn(2, 3, 5, 5))
    with pytest.raises(ConfigError, match="dummy_input=x"):
        quantized([{**FUSED, "fuse_names": [("conv", "bn")]}], Block())


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"target_names": ["bias"]}, "rule 0 → target_names.*the bias is added in 32 bits"),
        ({"target_names": ["_input_"], "granularity": "per_channel"}, "activations have one scale"),
        ({"target_names": ["weight"], "granularity": "in_channel"}, r"'out_channel' or \[1, n\]"),
        ({"target_names": ["weight"], "quant_dtype": "float8"}, "such as 'int8' or 'uint4'"),
        ({"target_names": ["weight"], "apply_method": "add"}, "clamp and round"),
        ({"target_names": ["weight"], "sparse_ratio": 0.5}, "rule 0 → sparse_ratio: unknown key"),
    ],
)
def test_what_has_no_equivalent_is_refused_at_its_place(rule, words):
    with pytest.raises(ConfigError, match=words):
        quantized([{"op_types": ["Linear"], **rule}], linear())


@pytest.mark.parametrize(
    "name", ["QATQuantizer", "LsqQuantizer", "LsqPlusQuantizer", "DoReFaQuantizer", "BNNQuantizer"]
)
def test_every_quantizer_of_v3_trains_in_compress(name):
    import nni.compression.quantization as quantization
    from nni.compression import TorchEvaluator

    def train(model, optimizer, step, schedulers, max_steps, max_epochs):
        for _ in range(max_steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    model, x = linear(), torch.randn(16, 8)
    before = model[0].weight.detach().clone()
    evaluator = TorchEvaluator(train, torch.optim.SGD(model.parameters(), lr=0.1))
    rule = {"op_types": ["Linear"], "target_names": ["weight"], "quant_scheme": "symmetric"}
    rule["quant_dtype"] = "int1" if name == "BNNQuantizer" else "int4"
    quantizer = getattr(quantization, name)(model, [rule], evaluator)
    _, config = quantizer.compress(3, None)
    assert config.keys() == {"0", "2"}
    assert len(model[0].weight.unique()) <= (2 if name == "BNNQuantizer" else 16)
    quantizer.unwrap_model()
    assert not torch.equal(model[0].weight, before)


def test_ranges_go_from_one_quantizer_to_another():
    from nni.compression.quantization import QATQuantizer

    model, other = linear(), linear()
    rules = [{"op_types": ["Linear"], "target_names": BOTH, "quant_dtype": "int8"}]
    config, x = quantized(rules, model)
    QATQuantizer(other, rules, None).update_calibration_config(config)
    assert torch.equal(other.eval()(x), model.eval()(x))
