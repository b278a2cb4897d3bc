"""ExecuTorch programs, executed by the runtime in ExecuTorch's own package."""

import copy

import numpy as np
import pytest
import torch
from digits_net import agreement, data, quantized
from torch import nn

from lilliput.errors import ConfigError, ExportError, StateError
from lilliput.torch import PTQQuantizer, export_executorch, open_file, strip

pytest.importorskip("executorch")
pytest.importorskip("torchao")
# torch and torchao call deprecated functions of their own when the program is lowered.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model, quantizer = quantized()
    before = copy.deepcopy(model.state_dict())
    path = tmp_path_factory.mktemp("pte") / "digits.pte"
    result = export_executorch(quantizer, path, data()[0][:8])
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    return model, result


def test_all_layers_run_on_integers_and_each_tensor_is_within_a_step(exported):
    _, result = exported
    found = result.runtimes["executorch"]
    assert found.local_lsb <= 1.01 and found.sqnr > 35
    assert result.integer_share == 1.0
    assert [layer.name for layer in result.layers] == ["first", "second", "third", "head"]
    assert {layer.kernel for layer in result.layers} == {"XNNPACK qs8"}
    # As the formulas say, for one example: 8×8 pixels, then 2×2.
    macs = [64 * 16 * 9, 64 * 16 * 144, 4 * 32 * 144, 320]
    assert [layer.macs for layer in result.layers] == macs
    rows = result.compare_layers()
    assert len(rows) == 7 and max(row["lsb"] for row in rows) < 3


def test_the_opened_file_names_the_digits_that_the_simulation_names(exported):
    model, result = exported
    file = open_file(result.path)
    same, right = agreement(model, file)
    assert same == 1.0 and right > 0.9
    assert result.bytes == file.bytes == result.path.stat().st_size


def test_it_takes_smaller_batches_and_refuses_larger_ones(exported):
    model, result = exported
    x = data()[0]
    file = open_file(result.path)
    assert result.sizes == {"batch": "1 to 64"}
    with torch.no_grad():
        for rows in (1, 5, 64):
            step = float(np.abs(file(x[:rows]) - model(x[:rows])).max())
            assert step < 0.1
    with pytest.raises(ConfigError, match="does not run on inputs of shapes"):
        file(x[:65])


@pytest.mark.slow
def test_an_output_that_is_not_quantized_leaves_the_layer_in_float(tmp_path):
    _, quantizer = quantized([{}])
    result = export_executorch(quantizer, tmp_path / "m.pte", data()[0][:8], dynamic_batch=False)
    head = result.layers[-1]
    assert (head.integer, head.weight_dtype, head.kernel) == (False, "float", "XNNPACK f32")
    assert head.reason == "its output is not quantized"
    assert any("add 'output' to quant_types" in note for note in result.notes)
    assert result.runtimes["executorch"].sqnr > 40 and result.sizes == {"batch": "8 only"}


@pytest.mark.slow
def test_grids_of_fewer_bits_are_clipped_to_their_ends(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    x = torch.randn(4, 3, 8, 8)
    bits = {"weight": 4, "input": 8, "output": 6}
    rule = {"op_types": ["Conv2d"], "quant_types": ["weight", "input", "output"]}
    quantizer = PTQQuantizer(model, [{**rule, "quant_bits": bits}], example_inputs=x)
    quantizer.compress()
    quantizer.calibrate([x])
    loud = 4 * x  # beyond what calibration saw
    result = export_executorch(
        quantizer, tmp_path / "m.pte", x, calibration=[loud], dynamic_batch=False
    )
    assert result.integer_share == 1.0 and result.runtimes["executorch"].local_lsb <= 1.01
    with torch.no_grad():
        step = float(np.abs(open_file(result.path)(loud) - model(loud)).max())
    assert step <= 1.5 * float(quantizer.get_modules_wrapper()[1].output_scale)


@pytest.mark.slow
def test_padding_of_its_own_and_negative_batch_norms_stay_on_integers(tmp_path):
    torch.manual_seed(0)
    parts = [
        nn.ZeroPad2d((0, 1, 0, 1)),
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
    ]
    parts += [nn.ZeroPad2d(1), nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8)]
    model = nn.Sequential(*parts).eval()
    for norm in (model[2], model[6]):
        norm.weight.data = torch.randn(8)
        norm.weight.data[0] = 0.0  # a channel that is switched off
        norm.bias.data, norm.running_mean = torch.randn(8), torch.randn(8)
    x = torch.randn(4, 3, 9, 9)
    rule = {"op_types": ["Conv2d"], "quant_types": ["weight", "input", "output"]}
    quantizer = PTQQuantizer(model, [rule], example_inputs=x)
    quantizer.compress()
    quantizer.calibrate([x])
    result = export_executorch(quantizer, tmp_path / "m.pte", x)
    assert result.integer_share == 1.0 and result.runtimes["executorch"].local_lsb <= 1.01


def test_what_xnnpack_does_not_have_is_refused(tmp_path):
    x = torch.randn(4, 8)
    for rule, message in (
        ({"observer": "dynamic"}, "its scale is computed in each call"),
        ({"quant_bits": 16}, "does not support activations with 16 bits"),
    ):
        model = nn.Sequential(nn.Linear(8, 4))
        quantizer = PTQQuantizer(
            model, [{"op_types": ["Linear"], "quant_types": ["weight", "input"], **rule}]
        )
        quantizer.compress()
        quantizer.calibrate([x])
        with pytest.raises(ExportError, match=message):
            export_executorch(quantizer, tmp_path / "m.pte", x)
    assert not list(tmp_path.iterdir())


class Applied(nn.Module):
    """A linear layer and a function of its output."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Identity()
        self.second.forward = function

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.median(-1).values, r"has no kernel for aten\.median\.dim_values in 'second'"),
        (torch.linalg.inv, r"cannot lower.*core: aten\.linalg_inv_ex\.default in 'second'"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_layers_with_unsupported_operators_are_named(function, message, check, tmp_path):
    x = torch.eye(4).repeat(2, 1, 1)
    with pytest.raises(ExportError, match=message):
        export_executorch(Applied(function).eval(), tmp_path / "m.pte", x, check=check)
    assert not list(tmp_path.iterdir())


def test_a_program_that_computes_otherwise_is_refused(tmp_path, monkeypatch):
    from lilliput.frameworks.torch.executorch.program import Execution

    run = Execution.run
    monkeypatch.setattr(Execution, "run", lambda self, x: [0.5 * y for y in run(self, x)])
    with pytest.raises(ExportError, match="as executed by executorch"):
        export_executorch(nn.Linear(4, 2), tmp_path / "m.pte", torch.randn(3, 4))
    assert not list(tmp_path.iterdir())


def test_bad_arguments_and_files_are_refused(tmp_path):
    with pytest.raises(ExportError, match=r"ending in \.pte"):
        export_executorch(nn.Linear(4, 2), tmp_path / "m.onnx", torch.randn(3, 4))
    with pytest.raises(ExportError, match="max_batch: received 0"):
        export_executorch(nn.Linear(4, 2), tmp_path / "m.pte", torch.randn(3, 4), max_batch=0)
    (tmp_path / "m.pte").write_bytes(b"nothing")
    with pytest.raises(StateError, match="ExecuTorch cannot read the file"):
        open_file(tmp_path / "m.pte")


def test_the_receipt_compares_two_programs(exported, tmp_path):
    model, result = exported
    other = export_executorch(strip(model), tmp_path / "float.pte", data()[0][:8])
    receipt = result.receipt
    assert receipt.before.bytes == pytest.approx(other.bytes, rel=0.02)
    assert receipt.before.runtime == receipt.after.runtime
