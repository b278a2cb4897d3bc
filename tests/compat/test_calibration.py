"""Calibration configs: what they hold, what is read from older ones, and what is refused."""

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.config.settings import set_quant_scheme_dtype, with_settings
from lilliput.errors import ConfigError, StageError, StateError
from lilliput.torch import QuantType

BOTH = {"quant_types": ["weight", "input"], "quant_bits": 8, "op_types": ["Linear"]}


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def quantized(name, rule=BOTH, model=None, steps=3):
    from nni.algorithms.compression.pytorch import quantization

    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quantizer = getattr(quantization, name)(model, [dict(rule)], optimizer)
    if name == "ObserverQuantizer":
        for _ in range(steps):
            model(torch.randn(16, 4))
    quantizer.compress()
    for _ in range(steps if name != "ObserverQuantizer" else 0):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    model.eval()
    return quantizer


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("QAT_Quantizer", BOTH),
        ("QAT_Quantizer", BOTH | {"quant_scheme": "per_channel_symmetric", "quant_dtype": "int"}),
        ("QAT_Quantizer", BOTH | {"quant_bits": {"weight": 4, "input": 6}}),
        ("QAT_Quantizer", BOTH | {"quant_start_step": 2}),
        ("LsqQuantizer", BOTH),
        ("ObserverQuantizer", BOTH),
    ],
    ids=["qat", "per channel", "bits", "later", "lsq", "observer"],
)
def test_a_file_makes_an_equal_quantizer(name, rule, tmp_path):
    x = torch.randn(8, 4)
    quantizer = quantized(name, rule)
    before = quantizer.bound_model(x).detach()
    config = quantizer.export_model(tmp_path / "model.pth", tmp_path / "calibration.pth")
    again = net()
    again.load_state_dict(torch.load(tmp_path / "model.pth"))
    assert not torch.equal(again(x), before)  # float weights
    other = quantized(name, rule, again, steps=0)
    other.load_calibration_config(tmp_path / "calibration.pth")
    assert torch.equal(again(x), before)
    for layer, entry in other.export_model(tmp_path / "again.pth").items():
        for key, value in entry.items():
            torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(config[layer][key]))


@pytest.mark.parametrize("name", ["DoReFaQuantizer", "BNNQuantizer", "NaiveQuantizer"])
def test_quantizers_without_ranges_export_the_rounded_weights(name, tmp_path):
    bits = {"DoReFaQuantizer": 4, "BNNQuantizer": 1, "NaiveQuantizer": 8}[name]
    rule = {"quant_types": ["weight"], "quant_bits": bits, "op_types": ["Linear"]}
    quantizer = quantized(name, rule)
    shown = quantizer.bound_model[0].weight.detach().clone()
    config = quantizer.export_model(tmp_path / "model.pth", tmp_path / "calibration.pth")
    assert config["0"]["weight_bits"] == bits
    assert torch.equal(torch.load(tmp_path / "model.pth")["0.weight"], shown)
    assert torch.load(tmp_path / "calibration.pth").keys() == config.keys() == {"0", "2"}


def test_binary_activations_do_not_keep_the_weights_from_being_written(tmp_path):
    rule = {"quant_types": ["weight", "output"], "quant_bits": 1, "op_types": ["Linear"]}
    quantizer = quantized("BNNQuantizer", rule)
    shown = quantizer.bound_model[2].weight.detach().clone()
    config = quantizer.export_model(tmp_path / "model.pth")
    assert config["2"]["output_bits"] == 1
    assert torch.equal(torch.load(tmp_path / "model.pth")["2.weight"], shown)


def test_the_words_of_2_0_are_read(caplog):
    quantizer = quantized("QAT_Quantizer", steps=0)
    old = {"weight_bit": 8, "tracked_min_input": -2.0, "tracked_max_input": 3.0}
    quantizer.load_calibration_config({"0": old})
    first = quantizer.get_modules_wrapper()[0]
    assert (float(first.input_low), float(first.input_high)) == (-2, 3)
    torch.testing.assert_close(first.input_scale, torch.tensor(5 / 255))
    assert "no entry for layer '2'" in caplog.text


def test_other_bits_are_refused_and_nothing_changes():
    quantizer = quantized("QAT_Quantizer")
    config = {"0": {"input_bits": 8, "tracked_min_input": -9.0, "tracked_max_input": 9.0}}
    config["2"] = {"weight_bits": 4}
    with pytest.raises(
        ConfigError, match="layer '2': the calibration config has 4 bits for its weigh"
    ):
        quantizer.load_calibration_config(config)
    assert float(quantizer.get_modules_wrapper()[0].input_high) != 9


def test_scales_for_another_scheme_are_refused():
    learned = quantized("LsqQuantizer")
    config = {"0": {"weight_scale": torch.ones(8, 1), "weight_zero_point": torch.zeros(8, 1)}}
    with pytest.raises(StateError, match="received 8 scales, expected 1"):
        learned.load_calibration_config(config)


def test_weights_that_the_file_was_not_written_for_are_noticed(caplog):
    quantizer = quantized("QAT_Quantizer")
    config = {"0": {"weight_scale": torch.ones(1), "weight_zero_point": torch.zeros(1)}}
    quantizer.load_calibration_config(config)
    assert "the weight of layer '0' has another scale than in the file" in caplog.text


def test_a_scale_that_the_last_step_left_behind_holds_until_training_goes_on():
    quantizer = quantized("QAT_Quantizer", BOTH | {"quant_types": ["weight"]})
    model = quantizer.bound_model
    scale, zero = torch.tensor([0.005]), torch.tensor([100.0])
    covering = model[0].weight.detach().clone()
    quantizer.load_calibration_config({"0": {"weight_scale": scale, "weight_zero_point": zero}})
    raw = dict(model.named_parameters())["0.weight"].detach()
    expected = ((raw / scale).round() + zero).clamp(0, 255).sub(zero) * scale
    torch.testing.assert_close(model[0].weight.detach(), expected)
    quantizer.optimizer.zero_grad()
    quantizer.optimizer.step()  # without gradients: the weight is as it was
    assert torch.equal(model[0].weight, covering)


def test_ranges_that_were_never_seen_are_not_exported(tmp_path):
    quantizer = quantized("QAT_Quantizer", steps=0)
    with pytest.raises(StageError, match="the range of input of layer '0' is not known yet"):
        quantizer.export_model(tmp_path / "model.pth")


def test_nni_had_one_scale_with_a_zero_point_unless_a_program_said_otherwise():
    (wrapper, _) = (quantizer := quantized("QAT_Quantizer")).get_modules_wrapper()
    grid = quantizer.grid(wrapper, "weight")
    assert (grid.granularity, grid.is_symmetric, grid.dtype) == ("per_tensor", False, "uint8")
    from nni.compression.pytorch.quantization.settings import set_quant_scheme_dtype as setter

    setter("weight", "per_channel_symmetric", "int")
    (wrapper, _) = (quantizer := quantized("QAT_Quantizer")).get_modules_wrapper()
    grid = quantizer.grid(wrapper, "weight")
    assert (grid.granularity, grid.is_symmetric, grid.dtype) == ("per_channel", True, "int8")
    uninstall()
    install()
    (wrapper, _) = (quantizer := quantized("QAT_Quantizer")).get_modules_wrapper()
    assert quantizer.grid(wrapper, "weight").granularity == "per_tensor"


def test_what_a_rule_says_comes_before_the_settings():
    rule = {"quant_types": ["weight", "output"], "quant_scheme": {"weight": "symmetric"}}
    (filled,) = with_settings("QATQuantizer", [rule])
    assert filled["quant_scheme"] == {"weight": "symmetric", "output": "affine"}
    assert filled["quant_dtype"] == {"weight": "uint", "output": "uint"}
    assert "granularity" not in filled
    assert with_settings("DoReFaQuantizer", [rule]) == [rule]


def test_settings_that_nni_did_not_have_are_refused():
    with pytest.raises(ConfigError, match="new_scheme: received 'per_row_affine'"):
        set_quant_scheme_dtype("weight", "per_row_affine")
    with pytest.raises(ConfigError, match="quant_type: received 'bias'"):
        set_quant_scheme_dtype("bias", new_dtype="int")


def test_scales_of_another_scheme_are_left_and_said(caplog):
    symmetric = {"quant_types": ["weight"], "quant_bits": 8, "op_types": ["Linear"]}
    quantizer = quantized("QAT_Quantizer", symmetric | {"quant_scheme": "per_tensor_symmetric"})
    wrapper = quantizer.get_modules_wrapper()[0]
    layer = quantizer.bound_model.get_submodule(wrapper.name)
    before = layer.weight.detach().clone()
    scale = quantizer.qparams(wrapper, QuantType("weight")).scale * 0.75
    held = {"weight_bits": 8, "weight_scale": scale, "weight_zero_point": torch.tensor([170.0])}
    quantizer.load_calibration_config({wrapper.name: held})
    assert torch.equal(layer.weight, before)
    assert "another scale than in the file" in caplog.text
